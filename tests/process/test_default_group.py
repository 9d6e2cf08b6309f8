"""What goes on from an iteration that a restart has ended takes no part in the next one, and saves nothing alone."""

from __future__ import annotations

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_restarts, restart

from .conftest import Launch

WORKER = "tests.harness.process.workers.default_group"


def run(prepare: Launch, way: str) -> Job:
    job = prepare(world=2)
    job.start(WORKER, NVRX_TEST_WAY=way).finish()
    assert_restarts(job, [restart("EXCEPTION", by=[1])])
    assert [line["values"] for line in job.lines("gathered")] == [[0, 1], [0, 1]]
    return job


def assert_refused(job: Job) -> None:
    """Each rank's thread was."""
    errors = [line["error"] for line in job.lines("outcome")]
    assert all("goes on from an iteration that a restart has ended" in error for error in errors), errors
    assert len(errors) == 2


@pytest.mark.parametrize("way", ["async_save", "thread"])
def test_a_thread_of_the_last_iteration_is_refused_the_default_group(prepare: Launch, way: str) -> None:
    """Its collective would meet the first one of the next iteration's main threads, which would get its bytes."""
    assert_refused(run(prepare, way))


def test_the_thread_of_an_executor_is_refused_it_until_its_job_is_done(prepare: Launch) -> None:
    job = run(prepare, "pool")
    assert_refused(job)
    assert [line["values"] for line in job.lines("next")] == [[10, 11], [10, 11]]


def test_a_save_that_begins_while_there_is_no_default_group_completes_no_checkpoint(prepare: Launch) -> None:
    """torch takes the process for the only rank then: the checkpoint would have the part of one rank."""
    job = run(prepare, "staged_late")
    assert_refused(job)
    assert [line["complete"] for line in job.lines("outcome")] == [False, False]


def test_a_save_in_a_handler_of_the_interruption_completes_no_checkpoint(prepare: Launch) -> None:
    (refused,) = run(prepare, "handler").lines("refused")
    assert "the part of this rank alone" in refused["error"]
    assert not refused["complete"]


def test_collectives_are_compiled_as_before_after_a_restart(prepare: Launch) -> None:
    """torch.compile goes through the functions that look for the default group."""
    assert [line["values"] for line in run(prepare, "compiled").lines("next")] == [[2.0, 2.0]] * 2
