"""What a call, or an iteration, leaves in its process when it has ended."""

from __future__ import annotations

import pytest

from tests.harness.process.job import Job

from .conftest import Launch

WORKER = "tests.harness.process.workers.again"


def run(prepare: Launch, case: str, *, store: bool = True) -> Job:
    return prepare(world=2, store=store).start(WORKER, NVRX_TEST_CASE=case).finish()


def test_the_result_of_a_function_is_released_when_the_others_restart(prepare: Launch) -> None:
    job = run(prepare, "returned")
    assert set(job.codes.values()) == {0}, job.codes
    assert [line["alive"] for line in job.lines("models", initial_rank=0)] == [0, 0]


@pytest.mark.parametrize(
    ("case", "store"), [("in_barrier", True), ("waiting", True), ("in_finalize", False), ("in_completion", False)]
)
def test_a_call_that_ctrl_c_ends_keeps_no_connection(prepare: Launch, case: str, store: bool) -> None:
    job = run(prepare, case, store=store)
    assert job.codes[0] == 0, job.errors(0)
    assert [line["error"] for line in job.lines("left", initial_rank=0)] == ["KeyboardInterrupt()"]
    assert job.lines("left", initial_rank=0)[0]["seconds"] < 8
    assert [line["more"] for line in job.lines("sockets", initial_rank=0)] == [0], "while its traceback is kept"
    assert {line["more"] for line in job.lines("freed")} == {0}


def test_a_call_follows_one_whose_completion_has_ended_it_on_one_rank(prepare: Launch) -> None:
    job = prepare(world=2).start(WORKER, NVRX_TEST_CASE="in_completion", NVRX_TEST_SECOND="1").finish()
    assert set(job.codes.values()) == {0}, job.codes
    assert [line["result"] for line in job.lines("again")] == ["done", "done"]


def test_a_call_that_is_made_where_the_end_of_another_is_handled_restarts(prepare: Launch) -> None:
    job = run(prepare, "handling")
    assert len(job.lines("done")) == 2, [job.errors(rank)[-2000:] for rank in job.codes]


def test_a_call_leaves_the_exception_alone_that_its_caller_handles(prepare: Launch) -> None:
    """It is the context of every exception that the function raises."""
    job = run(prepare, "handling")
    told = [(line["frames"], line["steps"]) for line in job.lines("handled")]
    assert told == [(["instead", "another_call"], 7)] * 2
