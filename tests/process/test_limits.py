"""A rank runs out of files, processes, threads or memory: it says so, and the others go on or end in time."""

from __future__ import annotations

import itertools
import signal

import pytest

from tests.harness.process import host
from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_nothing_left, assert_promises, assert_restarts, restart

from .conftest import Launch

LIMITS = "tests.harness.process.workers.limits"


def start(prepare: Launch, case: str, limit: int = 0, **environment: str) -> Job:
    return prepare(world=2).start(LIMITS, NVRX_TEST_CASE=case, NVRX_TEST_LIMIT=str(limit), **environment)


@pytest.mark.parametrize(
    ("case", "limits", "words"),
    [
        ("few_files", (6, 10, 13), ["Too many open files"]),
        ("few_processes", (1, 3, 4), ["Resource temporarily unavailable", "can't start new thread"]),
    ],
    ids=["files", "processes and threads"],
)
def test_a_rank_that_cannot_start_says_what_it_lacks(
    prepare: Launch, case: str, limits: tuple[int, ...], words: list[str]
) -> None:
    jobs = {limit: start(prepare, case, limit) for limit in limits}
    for limit, job in jobs.items():
        job.finish()
        assert job.codes[1] == 1, f"limit {limit}"
        assert any(word in job.errors(1) for word in words), job.errors(1)
        assert "negative integer" not in job.errors(1), "the reason is hidden by another error"
        assert not job.lines("enter", initial_rank=1), "it runs with what it lacks"
        told = job.codes[0] == 0 or "missing ranks: 1 (of 2)" in job.errors(0)
        assert told, f"limit {limit}: rank 0 ended with {job.codes[0]}: {job.errors(0)}"
    for job in jobs.values():
        assert_nothing_left(job)


@pytest.mark.parametrize(
    ("case", "words"),
    [("files", "Too many open files: '/dev/null'"), ("memory", "MemoryError")],
    ids=["files", "memory"],
)
def test_what_the_function_took_is_given_back_by_the_restart(prepare: Launch, case: str, words: str) -> None:
    job = start(prepare, case).finish()
    assert job.codes == {0: 0, 1: 0}
    assert {line["result"] for line in job.lines("done")} == {1}
    assert_restarts(job, [restart("EXCEPTION", by=[1])])
    assert words in job.errors(0)
    assert job.events("restart")[0]["cause"]["category"] == ("out of memory" if case == "memory" else "")
    assert_promises(job)
    assert_nothing_left(job)


def test_a_rank_may_have_more_files_than_select_takes(prepare: Launch) -> None:
    job = start(prepare, "many_files").finish()
    assert job.codes == {0: 0, 1: 0}, job.errors(1)
    assert {line["result"] for line in job.lines("done")} == {1}
    assert_restarts(job, [restart("EXCEPTION", by=[1])])
    assert_nothing_left(job)


def test_a_rank_that_the_kernel_kills_for_memory_is_reported_as_such(prepare: Launch) -> None:
    with host.memory_cgroup(256 << 20) as folder:
        job = start(prepare, "cgroup", NVRX_TEST_CGROUP=str(folder)).finish()
        assert host.eventually(lambda: not (folder / "cgroup.procs").read_text(), 5)
    assert job.codes == {0: 0, 1: -signal.SIGKILL}
    assert_restarts(job, [restart("TERMINATED", by=[1], lost=[1])])
    assert job.events("restart")[0]["cause"]["category"] == "out of memory"
    assert "TERMINATED (out of memory) on rank 1" in job.errors(0)
    assert_nothing_left(job)


def test_a_rank_without_a_free_file_is_got_out_of_a_collective(prepare: Launch) -> None:
    job = start(prepare, "files_in_a_collective").finish()
    assert job.codes == {0: 0, 1: 0}, "the rank that waited was killed"
    assert_restarts(job, [restart("EXCEPTION", by=[0])])
    assert "abort failed" not in job.errors(1)
    assert_promises(job)
    assert_nothing_left(job)


def test_files_that_are_lost_for_good_end_the_job_with_the_reason(prepare: Launch) -> None:
    job = start(prepare, "files_for_good").finish()
    assert job.codes == {0: 1, 1: 1}
    assert "Too many open files" in job.errors(1).splitlines()[-2]
    assert "giving up" in job.errors(1).splitlines()[-1]
    assert "Too many open files" in job.errors(0)
    assert "no_progress_limit=3" in job.errors(0).splitlines()[-1]
    assert_promises(job)
    assert_nothing_left(job)


def test_a_mistake_in_the_script_restarts_ever_more_slowly_and_ends_the_job(prepare: Launch) -> None:
    job = start(prepare, "mistake", 5).finish()
    assert job.codes == {0: 1, 1: 1}
    entered = [line["at"] for line in job.lines("enter", initial_rank=1)]
    assert len(entered) == 5
    pauses = [later - earlier for earlier, later in itertools.pairwise(entered)]
    assert pauses[2] >= 0.1
    assert pauses[3] >= 0.2
    told = job.errors(1)
    assert told.count("the function failed on initial rank 1 in iteration 0:\nTraceback (most recent call last):") == 1
    assert "in mistake\n    optimiser.step()" in told
    (event,) = job.events("exception", initial_rank=1)
    assert "in mistake\n    optimiser.step()" in event["traceback"]
    assert "fails alike" not in told
    assert "nvrx_core/" not in told.partition("Traceback")[2].partition("NameError")[0]
    assert [f"restart {n} in" in job.errors(0) for n in (1, 2)] == [True, True]
    assert "5 in a row with no step reported (no_progress_limit=5, None for no limit)" in job.errors(0).splitlines()[-1]
    assert_nothing_left(job)


def test_a_mistake_without_a_limit_is_logged_once_a_second(prepare: Launch) -> None:
    job = start(prepare, "mistake", 0)
    first = job.await_line("enter", initial_rank=1, iteration=3)["at"]
    last = job.await_line("enter", initial_rank=1, iteration=40)["at"]
    for rank in (0, 1):
        job.kill(rank)
    job.finish()
    lines = [line for line in job.errors(0).splitlines() if "restart " in line]
    assert 1 <= len(lines) <= 5 + (last - first), lines
    assert job.errors(1).count("the function failed on initial rank 1") == 1


def test_a_monitor_process_is_forked_as_soon_as_the_limit_of_processes_allows(prepare: Launch) -> None:
    job = start(prepare, "crowd", 30).finish()
    assert job.codes == {0: 0, 1: 0}, job.errors(1)
    assert job.lines("crowded")[0]["others"] > 0
    assert job.lines("monitored")[0]["pid"]
    assert "no monitor process can be forked so far, it is tried again: BlockingIOError" in job.errors(1)
    assert_restarts(job, [])
    assert_nothing_left(job)


def test_a_rank_whose_monitor_process_cannot_be_forked_in_time_leaves_and_says_why(prepare: Launch) -> None:
    job = start(prepare, "crowd_for_good", 30).finish()
    assert job.codes == {0: 0, 1: 1}, job.errors(1)
    why = "no monitor process could be kept running: BlockingIOError: [Errno 11] Resource temporarily unavailable"
    assert f"initial rank 1 leaves: {why}" in job.errors(1)
    assert_restarts(job, [restart("BASE_EXCEPTION", by=[1], lost=[1])])
    assert_nothing_left(job)


def test_a_rank_whose_monitor_process_reaches_no_store_is_not_waited_for(prepare: Launch) -> None:
    job = start(prepare, "few_processes", 6).finish()
    assert job.codes[1] != 0
    assert_nothing_left(job)
