"""Who is blamed for a hang: the rank that stands still, never one that waits for it, and never one that is slow."""

from __future__ import annotations

import json
import random

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_no_process_left

from .conftest import Launch

HANGS = "tests.harness.process.workers.hangs"
Hang = tuple[str, int, int, int]


def hangs(seed: int, world: int, kinds: list[str]) -> list[Hang]:
    """Of each kind one, in an order, at a rank and at a step by chance, beside another rank that is slow."""
    rng = random.Random(seed)
    print(f"seed {seed}, {world} ranks")
    rng.shuffle(kinds)
    return [(kind, rng.randrange(world), rng.randint(0, 20), rng.randrange(world)) for kind in kinds]


def play(prepare: Launch, planned: list[Hang], world: int, **more: str) -> Job:
    settings = json.dumps({"soft_timeout": 1.2, "hard_timeout": 3.0})
    job = prepare(world=world)
    job.start(HANGS, NVRX_TEST_HANGS=json.dumps(planned), NVRX_TEST_SETTINGS=settings, **more)
    return job.finish(30 + 5 * len(planned))


def assert_blamed(job: Job, planned: list[Hang]) -> None:
    """Each restart names its target and nobody else, on all ranks; nobody was lost."""
    assert_no_process_left(job)
    assert job.codes == dict.fromkeys(range(job.world), 0)
    told = {(line["iteration"], tuple(line["culprits"])) for line in job.events("restart")}
    wrong = {(number, hang) for number, hang in enumerate(planned, start=1) if (number, (hang[1],)) not in told}
    assert not wrong, f"of {len(planned)} hangs these were blamed on others: {wrong}; told: {sorted(told)}"
    assert len(told) == len(planned), f"more restarts than hangs: {sorted(told)}"
    lines = {line["iteration"]: line for line in job.events("hang_verdict")}
    others = [
        lines.get(number) for number, hang in enumerate(planned) if lines.get(number, {}).get("ranks") != [hang[1]]
    ]
    assert not others, f"of {len(planned)} lines these name others: {others}"


@pytest.mark.parametrize(
    ("world", "kinds"),
    [(4, ["sleep", "lock", "loop", "livelock"]), (12, ["sleep", "livelock"])],
    ids=["4 ranks", "12 ranks"],
)
def test_the_rank_that_hangs_is_blamed_and_no_other(prepare: Launch, world: int, kinds: list[str]) -> None:
    planned = hangs(random.randrange(1 << 30), world, kinds)
    assert_blamed(play(prepare, planned, world), planned)


def test_the_rank_that_hangs_is_blamed_where_all_collectives_are_of_small_groups(prepare: Launch) -> None:
    """Each rank waits for a neighbour, and only one of them for nobody."""
    planned = hangs(random.randrange(1 << 30), 6, ["sleep", "livelock", "loop"])
    assert_blamed(play(prepare, planned, 6, NVRX_TEST_RING="1"), planned)


@pytest.mark.nightly
@pytest.mark.parametrize("world", [4, 12])
def test_sixty_hangs_and_twenty_livelocks_are_blamed_on_the_right_rank(prepare: Launch, world: int) -> None:
    planned = hangs(random.randrange(1 << 30), world, ["sleep", "lock", "loop"] * 20 + ["livelock"] * 20)
    assert_blamed(play(prepare, planned, world), planned)
