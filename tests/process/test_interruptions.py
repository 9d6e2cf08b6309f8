"""Shapes of user code, interrupted at random instants: no lock stays taken, each cleanup runs once, no rank is lost."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_nothing_left
from tests.harness.process.workers.in_thread import RESTARTS
from tests.harness.process.workers.shapes.injections import PLAN, planned
from tests.harness.process.workers.shapes.shape import THEMES, theme

from .conftest import Launch

ROUNDS, NIGHTLY_ROUNDS = 11, 220
SHORT = {"soft_timeout": 30.0, "hard_timeout": 45.0}
NEXT_WITHIN = 60.0
"""Seconds from one interruption to the next; a rank that ignores one is killed by the hard timeout before."""


def interrupt_at_random(prepare: Launch, tmp_path: Path, name: str, rounds: int) -> Job:
    """A job of the shapes of one theme, and one rank more that injects the interruptions."""
    seed = int(os.environ.get("NVRX_TEST_SEED", random.randrange(1 << 32)))
    print(f"NVRX_TEST_SEED={seed}")
    go = tmp_path / "go"
    os.mkfifo(go)
    plan = {"theme": name, "seed": seed, "rounds": rounds, "go": str(go), "wrapper": SHORT}
    job = prepare(world=1 + max(shape.targets for shape in theme(name)))
    return job.start("tests.harness.process.workers.interrupted", **{PLAN: json.dumps(plan)})


def finish(job: Job) -> Job:
    """Wait for the end of a job for as long as its iterations go on: there are up to 1,760 of them."""
    entered = -1
    while len(job.codes) < job.world and (last := len(job.events("restart"))) > entered:
        entered = last
        job.finish_ranks(NEXT_WITHIN)
    return job.finish(0)


def assert_nothing_broken(job: Job, name: str, rounds: int) -> None:
    injections = planned(name, 0, rounds)
    shapes = [theme(name)[number] for number in {injection.shape for injection in injections}]
    broken = Counter((line["shape"], line["when"].split(" of ")[0], line["error"]) for line in job.lines("broken"))
    assert not broken, f"{broken} in {len(injections)} interruptions"
    assert set(job.codes.values()) == {0}
    left = job.lines("left", initial_rank=0)
    assert all(line["interruptions"] <= 1 for line in left), [line for line in left if line["interruptions"] > 1]
    restarts = {line["iteration"] for line in job.events("restart")}
    assert restarts == set(range(1, len(injections) + 1))
    interrupted = Counter(line["shape"] for line in left)
    assert len(left) >= len(injections) // 2, f"{len(left)} of {len(injections)} interruptions met a shape"
    assert set(interrupted) == {shape.__name__ for shape in shapes}, "a shape was never interrupted"
    assert sum(line["passes"] for line in left) >= len(shapes)
    assert_nothing_left(job)


def test_there_are_thirty_shapes_and_five_hundred_interruptions() -> None:
    assert sum(len(theme(name)) for name in THEMES) >= 30
    assert sum(len(planned(name, 0, ROUNDS)) for name in THEMES) >= 500
    assert sum(len(planned(name, 0, NIGHTLY_ROUNDS)) for name in THEMES) >= 10_000


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(NIGHTLY_ROUNDS, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", THEMES)
def test_whatever_is_interrupted_works_afterwards(prepare: Launch, tmp_path: Path, name: str, rounds: int) -> None:
    assert_nothing_broken(finish(interrupt_at_random(prepare, tmp_path, name, rounds)), name, rounds)


def test_a_function_in_another_thread_is_interrupted_neither_behind_its_end_nor_in_its_cleanup(prepare: Launch) -> None:
    job = prepare(world=2)
    job.start("tests.harness.process.workers.in_thread", **{RESTARTS: "100"}).finish(60)
    assert job.codes == {0: 0, 1: 0}
    assert [(line["result"], line["torn"]) for line in job.lines("done")] == [(100, 0)] * 2
