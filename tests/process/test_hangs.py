"""A rank stops making progress, in every way a process can. No test here waits for a timeout of torch."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import Restart, assert_latency_agrees, assert_nothing_lost, restart
from tests.harness.process.workers import importing

from .conftest import Launch

SOFT = {"soft_timeout": 1.5}
# A rank that waits for a living one is excused for as long as the hard timeout.
BOUNDED = {"soft_timeout": 1.5, "hard_timeout": 4.0}
HARD = {"soft_timeout": 1.5, "hard_timeout": 3.0, "termination_grace_time": 0.5}
Ways = list[tuple[int, bool]]
"""The target, and whether its peer waits for it in a collective."""
ways = pytest.mark.parametrize(
    "ways",
    [[(0, False), (1, True)], pytest.param([(0, True), (1, False)], marks=pytest.mark.nightly)],
    ids=["", "the other way round"],
)


def both(launch: Launch, ways: Ways, kind: str, wrapper: dict[str, float], **plan: object) -> list[tuple[int, Job]]:
    """The same hang on either rank, alone or with a peer that waits for it, side by side, as all of it is waiting."""
    jobs = [
        (target, launch({(target, 0, 3): kind}, world=2, collective=collective, wrapper=wrapper, **plan))
        for target, collective in ways
    ]
    for _, job in jobs:
        job.finish()
    return jobs


def blames(target: int, job: Job, lost: tuple[int, ...] = ()) -> Restart:
    """Where ranks wait for each other, nobody can be told from the culprit by progress."""
    waiting = job.plan.collective or "hang_gloo" in job.plan.faults
    return restart("SOFT_TIMEOUT HARD_TIMEOUT", by=None if waiting else [target], lost=lost)


ENDED = ["hang_sleep", "hang_lock", "hang_recv", "hang_gloo", "gil_held", "swallow", "livelock"]


@ways
@pytest.mark.parametrize("kind", ENDED)
def test_a_hang_that_an_interruption_ends_costs_no_rank(launch: Launch, kind: str, ways: Ways) -> None:
    for target, job in both(launch, ways, kind, BOUNDED if kind == "hang_gloo" else SOFT, group=True):
        assert_nothing_lost(job, blames(target, job))


def test_a_hang_ends_at_the_soft_timeout_however_rarely_leases_are_to_be_renewed(launch: Launch) -> None:
    """Ranks that wait for the target see from its lease that it does not go on."""
    rarely = {"heartbeat_interval": 30.0, "heartbeat_timeout": 60.0}
    job = launch({(1, 0, 3): "hang_sleep"}, world=3, collective=True, wrapper=SOFT | rarely).finish(45)
    assert_nothing_lost(job, blames(1, job))


@ways
@pytest.mark.parametrize("kind", ["hang_store", "stagnation"])
def test_a_hang_known_by_its_steps_or_its_store_costs_no_rank(launch: Launch, kind: str, ways: Ways) -> None:
    for target, job in both(launch, ways, kind, SOFT, progress=True):
        assert_nothing_lost(job, blames(target, job))


INSIDE = {"gil_locked": "gil_locked", "hang_atomic": "hang_atomic", "swallow_all": "sleep_swallowing"}


@ways
@pytest.mark.parametrize("kind", [*INSIDE, "stop"])
def test_a_hang_that_nothing_ends_is_killed(launch: Launch, kind: str, ways: Ways) -> None:
    for target, job in both(launch, ways, kind, HARD):
        code = job.codes[target]
        assert code in (-signal.SIGTERM, -signal.SIGKILL)
        assert_nothing_lost(job, blames(target, job, lost=(target,)), codes={target: code})
        assert_stacks(job, target, kind)
        if kind == "swallow_all":
            told = re.findall(r"swallowed at \S+injectors\.py:\d+", job.errors(target))
            assert len(told) == len({*told}) > 0, "each place that swallows it is told once"


def assert_stacks(job: Job, target: int, kind: str) -> None:
    """Where all its threads were is told before the kill, of a process that is not stopped."""
    told = [" ".join(line["threads"]) for line in job.events("stacks")]
    assert len(told) == (kind != "stop"), told
    for text in [*told, *([job.errors(target)] if told else [])]:
        assert re.search(rf"injectors\.py\", line \d+ in _{INSIDE.get(kind)}\b", text), text
        assert re.search(r"progress_watchdog\.py\", line \d+ in _watch", text), "not all threads"
        assert re.search(r"stacks\.py\", line \d+ in _serve", text), "nobody answers but the signal"


def test_a_hang_among_three_blames_the_one_that_is_behind(launch: Launch) -> None:
    job = launch({(2, 0, 3): "hang_sleep"}, progress=True, wrapper=SOFT).finish()
    assert_nothing_lost(job, restart("SOFT_TIMEOUT", by=[2]))


def test_the_phases_of_a_livelock_add_up_to_the_latency_that_the_ranks_measured(launch: Launch) -> None:
    faults = {(1, 0, 3): "livelock", (0, 1, 3): "livelock", (2, 2, 3): "livelock"}
    job = launch(faults, wrapper=SOFT).finish()
    assert_nothing_lost(job, *(restart("SOFT_TIMEOUT", by=[rank]) for rank in (1, 0, 2)))
    assert_latency_agrees(job)


WAITS: dict[str, dict[str, Any]] = {
    "init_process_group": {"collective": True, "late": {"0": 3.5}},
    "a collective": {"collective": True, "slow": {"1": 3.5}},
    "the completion barrier": {"slow": {"0": 3.5}},
    "a sleep without hang protection": {"unprotected": {"1": 3.5}},
}


def test_waiting_for_a_slow_peer_is_not_a_hang(launch: Launch) -> None:
    jobs = {where: launch({}, wrapper=SOFT, **plan) for where, plan in WAITS.items()}
    for job in jobs.values():
        job.finish()
    for where, job in jobs.items():
        assert_nothing_lost(job)
        flagged = {rank for line in job.events("straggler") for rank in line["ranks"]}
        expected = {1} if where == "a collective" else set()
        assert flagged == expected, f"{where}: who waits without a sign of life says for whom"


def test_a_fault_elsewhere_lets_an_atomic_section_end_first(launch: Launch) -> None:
    job = launch({(0, 0, 3): "exception"}, atomic={"1": 0.8}).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[0]))
    (injected,), (ended,) = job.lines("fault_injected"), job.lines("atomic_end")
    assert injected["at"] < ended["at"], "the fault came too late to be of interest"


def test_an_atomic_section_longer_than_a_barrier_waits_loses_nobody(launch: Launch) -> None:
    short = {"soft_timeout": 1.2, "hard_timeout": 1.7, "heartbeat_timeout": 1.5, "barrier_timeout": 2.0}
    job = launch({(0, 0, 3): "exception"}, atomic={"1": 6.0}, wrapper=short | {"heartbeat_interval": 0.5}).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[0]))
    (injected,), (ended,) = job.lines("fault_injected"), job.lines("atomic_end")
    assert ended["at"] - injected["at"] > short["barrier_timeout"], "the section was too short to be of interest"
    assert "waiting for initial ranks [1], in an atomic section" in job.errors(0)


def test_a_death_elsewhere_lets_an_atomic_section_end_first(launch: Launch) -> None:
    job = launch({(0, 0, 3): "kill"}, atomic={"1": 0.8}).finish()
    assert_nothing_lost(job, restart("TERMINATED", by=[0], lost=[0]), codes={0: -signal.SIGKILL})
    (injected,), (ended,) = job.lines("fault_injected"), job.lines("atomic_end")
    assert injected["at"] < ended["at"], "the fault came too late to be of interest"


def test_an_import_that_goes_on_for_longer_than_the_hard_timeout_loses_no_rank(prepare: Launch) -> None:
    """The interruption waits for it: half of a package would break every later iteration."""
    job = prepare(world=2).start("tests.harness.process.workers.importing").finish()
    assert job.codes == {0: 0, 1: 0}, job.errors(1)
    assert [line["result"] for line in job.lines("done")] == [1, 1]
    (imported,) = job.lines("done", initial_rank=1)
    assert imported["modules"] == importing.MODULES
    lasted = job.lines("importing", iteration=1)[0]["at"] - job.lines("importing", iteration=0)[0]["at"]
    assert lasted > importing.SHORT["hard_timeout"] + 1, "the import was too short to be of interest"


def test_a_function_that_runs_in_another_thread_is_no_hang(prepare: Launch) -> None:
    """The main thread waits for it all the while, and answers nothing."""
    job = prepare(world=2)
    job.start("tests.harness.process.workers.other_thread").finish(20)
    assert job.codes == {0: 0, 1: 0}
    assert [line["result"] for line in job.lines("done")] == [0, 0]
