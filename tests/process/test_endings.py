"""A healthy rank goes on, whatever shape the interruption takes, and what fails is a failure."""

from __future__ import annotations

import signal

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_no_process_left

from .conftest import Launch

WORKER = "tests.harness.process.workers.endings"
SLOW_LOG = "tests.harness.process.workers.slow_log"
DROPPED = "tests.harness.process.workers.dropped_work"


def run(prepare: Launch, case: str, *, world: int = 2) -> Job:
    job = prepare(world=world, store=True).start(WORKER, NVRX_TEST_CASE=case).finish()
    assert_no_process_left(job)
    return job


CASES = [
    "checkpoint_fails",
    "checkpoint_wraps",
    "exits",
    "task_group",
    "group",
    "blocked",
    "suspended",
    "default_timeout",
]


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_go_on(prepare: Launch, case: str) -> None:
    job = run(prepare, case)
    assert set(job.codes.values()) == {0}, job.codes
    for rank in range(2):
        iterations = [line["iteration"] for line in job.lines("enter", initial_rank=rank)]
        assert iterations == [0, 1], f"rank {rank}: {iterations}"
    assert max(line["at"] for line in job.lines("enter", iteration=1)) < job.lines("enter")[0]["at"] + 10


def test_a_long_import_ends_while_the_lease_of_its_rank_moves_on(prepare: Launch) -> None:
    """Another rank has died behind it: nobody waits for that one, and nobody is excused for it."""
    job = run(prepare, "imports", world=3)
    assert job.codes == {0: 0, 1: -signal.SIGKILL, 2: 0}
    for rank in (0, 2):
        assert [line["iteration"] for line in job.lines("enter", initial_rank=rank)] == [0, 1]
    told = [(line["cause"]["interruption"], line["lost"]) for line in job.events("restart")]
    assert told == [("TERMINATED", [1])] * 2


def test_a_script_that_ends_while_a_thread_of_torch_waits_for_the_interpreter_ends_well(prepare: Launch) -> None:
    """Without nvrx it is aborted, with code 134, after a training that was done."""
    job = prepare(world=2).start(DROPPED).finish()
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert_no_process_left(job)


def test_a_rank_that_leaves_has_logged_the_failure_of_its_function(prepare: Launch) -> None:
    """A thread writes it: the end of the call waits for it."""
    job = prepare(world=1).start(SLOW_LOG).finish()
    assert job.codes == {0: 1}, job.errors(0)
    assert "the function failed on initial rank 0 in iteration 0:\nTraceback" in job.errors(0)
    assert "ValueError: injected" in job.errors(0)


def test_a_signal_that_was_blocked_is_blocked_again_after_the_call(prepare: Launch) -> None:
    job = run(prepare, "blocked")
    assert {line["blocked"] for line in job.lines("mask")} == {len(signal.valid_signals()) - 3}


def test_a_late_signal_of_the_monitor_process_ends_no_process(prepare: Launch) -> None:
    job = run(prepare, "signalled", world=1)
    assert set(job.codes.values()) == {0}, job.codes
    assert len(job.lines("done")) == 8


def test_a_script_that_is_run_again_finds_nothing_of_its_last_run(prepare: Launch) -> None:
    job = run(prepare, "module")
    assert set(job.codes.values()) == {0}, job.codes
    assert [line["alive"] for line in job.lines("models", initial_rank=0)] == [0, 0]
    assert [line["alive"] for line in job.lines("models", initial_rank=1)] == [0, 0]
