"""Children of os.fork inside the function: no ranks; they end as without the wrapper, and a restart passes them by."""

from __future__ import annotations

import os
import signal

import pytest

from nvrx_core.progress.page import Page, ProgressField
from tests.harness.process import host
from tests.harness.process.job import Job

from .conftest import Launch

WORKER = "tests.harness.process.workers.forking"
CODES = {"returns": 0, "raises": 1, "exits 0": 0, "exits 3": 3, "ends at once": 5}


def job_of(prepare: Launch, shape: str, *, store: bool = True) -> Job:
    return prepare(world=2, store=store).start(WORKER, NVRX_TEST_SHAPE=shape)


def assert_restarted_once(job: Job) -> None:
    assert job.codes == {0: 0, 1: 0}, job.errors(0) + job.errors(1)
    assert [line["result"] for line in job.lines("done")] == [1, 1]
    assert len(job.events("fault")) == 1


@pytest.mark.parametrize("store", [True, False], ids=["store elsewhere", "store in rank 0"])
def test_a_child_ends_as_without_the_wrapper(prepare: Launch, store: bool) -> None:
    job = job_of(prepare, "each end", store=store).finish()
    assert_restarted_once(job)
    for rank in (0, 1):
        assert {line["end"]: line["code"] for line in job.lines("reaped", initial_rank=rank)} == CODES
        assert [line["threads"] for line in job.lines("child", initial_rank=rank)] == [["MainThread"]] * len(CODES)
        assert [line["result"] for line in job.lines("child returned", initial_rank=rank)] == ["of the child"]
        assert job.errors(rank).count("KeyError: 'of the child'") == 1
        assert " leaves" not in job.errors(rank), "the wrapper has looked at the child's end"


def test_a_forked_process_of_multiprocessing_ends_with_its_own_code(prepare: Launch) -> None:
    job = job_of(prepare, "a process").finish()
    assert_restarted_once(job)
    assert [line["code"] for line in job.lines("reaped")] == [3, 3]


def test_forked_workers_of_a_loader_serve_their_rank(prepare: Launch) -> None:
    assert_restarted_once(job_of(prepare, "a loader", store=False).finish())


def test_a_restart_and_the_end_of_the_job_pass_a_child_by(prepare: Launch) -> None:
    job = job_of(prepare, "outlives", store=False).finish()
    assert_restarted_once(job)
    for line in job.lines("forked"):
        assert host.alive(line["child"])
        os.kill(line["child"], signal.SIGKILL)


def test_what_a_child_writes_on_the_disowned_page_its_rank_does_not_read() -> None:
    page = Page(10)
    page[ProgressField.STEP] = 3
    child = os.fork()
    if child == 0:
        page.disown()
        page[ProgressField.STEP] += 1
        page.lose([2])
        os._exit(page[ProgressField.STEP])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    assert (page[ProgressField.STEP], page.members()) == (3, frozenset(range(10)))
    page.close()
