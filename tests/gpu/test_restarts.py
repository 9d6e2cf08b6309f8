"""A fault on one rank while the others wait for it in NCCL or in a CUDA call: all enter the function again."""

from __future__ import annotations

import signal
import statistics

import pytest

from nvrx_core.events import timeline
from tests.harness.gpu.case import Case, environment
from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_nothing_left
from tests.process.conftest import Launch

WORLD = 3
KILLED = -signal.SIGKILL


def run(prepare: Launch, case: Case, **variables: str) -> Job:
    job = prepare(world=WORLD)
    job.start("tests.harness.gpu.rank", **{**environment(case), **variables}).finish(100)
    print(case, "| ms to the slowest rank:", *(f"{each:.1f}" for each in restart_times(job)))
    for each in timeline.restarts(timeline.read(job.directory / "events")):
        print("   ", {name: round(1e3 * seconds, 1) for name, seconds in each.phases.items()})
    return job


def restart_times(job: Job) -> list[float]:
    """Milliseconds from each fault until the last rank is in the function again."""
    faults = {line["iteration"]: line["at"] for line in job.lines("fault")}
    entries = {iteration: [line["at"] for line in job.lines("enter", iteration=iteration + 1)] for iteration in faults}
    return [1e3 * (max(entries[iteration]) - at) for iteration, at in faults.items() if entries[iteration]]


def assert_went_on(job: Job, case: Case, lost: dict[int, tuple[int, ...]] | None = None) -> None:
    """The ranks that are not lost complete the last iteration's collective and the job, the others end as told."""
    lost = lost or {}
    left = set(range(WORLD)) - set(lost)
    assert {rank: code for rank, code in job.codes.items() if rank in left} == dict.fromkeys(left, 0)
    assert all(job.codes[rank] in codes for rank, codes in lost.items()), job.codes
    assert {line["initial_rank"] for line in job.lines("right", iteration=case.restarts)} == left
    assert {line["result"] for line in job.lines("done")} == {WORLD - len(lost)}
    assert_nothing_left(job)


def check(prepare: Launch, case: Case, lost: dict[int, tuple[int, ...]] | None = None, **variables: str) -> Job:
    job = run(prepare, case, **variables)
    assert_went_on(job, case, lost)
    return job


WAITS = [
    "synchronize", "item", "copy", "event", "busy", "sleep", "receive", "batched", "subgroups", "barrier", "object",
    "backward", "batched_backward", "creation", "first_batch", "many_groups", "graph", "kept_graph", "capture", "ddp",
]  # fmt: skip


@pytest.mark.parametrize("wait", WAITS)
def test_ranks_leave_a_call_that_waits_for_the_failed_one(prepare: Launch, wait: str) -> None:
    check(prepare, Case(wait))


@pytest.mark.parametrize("wait", ["synchronize", "creation"])
def test_communicators_made_at_once(prepare: Launch, wait: str) -> None:
    check(prepare, Case(wait, eager=True))


@pytest.mark.parametrize("wait", ["synchronize", "gloo"])
def test_gloo_and_nccl_in_one_group(prepare: Launch, wait: str) -> None:
    check(prepare, Case(wait, backend="cpu:gloo,cuda:nccl"))


@pytest.mark.parametrize("wait", ["synchronize", "ddp"])
def test_a_killed_rank(prepare: Launch, wait: str) -> None:
    check(prepare, Case(wait, fault="kill", restarts=1), lost={1: (KILLED,)})


def test_a_rank_that_hangs(prepare: Launch) -> None:
    """The target sleeps, the others are in a collective: the soft timeout ends it."""
    check(prepare, Case("synchronize", fault="hang_sleep", wrapper={"soft_timeout": 3.0, "hard_timeout": 60.0}))


@pytest.mark.parametrize("training", ["ddp", "fsdp2"])
def test_the_memory_of_the_device_is_flat(prepare: Launch, training: str) -> None:
    """FSDP2 takes new streams in each iteration, and torch's cache has blocks of each: it is emptied."""
    case = Case(training, before=f"three steps of {training}", empty_cache=training == "fsdp2", restarts=20)
    job = check(prepare, case)
    for rank in range(WORLD):
        entries = job.lines("enter", initial_rank=rank)
        for name in ("allocated", "reserved", "used", "threads", "files"):
            assert max(line[name] for line in entries[-5:]) <= max(line[name] for line in entries[2:7]), name
    print("median ms", statistics.median(restart_times(job)))


def test_pending_kernels_end_before_the_function_starts_again(prepare: Launch) -> None:
    check(prepare, Case("kernel", health=20.0))


def test_a_device_that_hangs_ends_its_rank(prepare: Launch) -> None:
    """The target's stream has a kernel without an end: the check fails, and the others go on."""
    check(prepare, Case("synchronize", after="endless", health=2.0, restarts=1), lost={1: (1, KILLED)})


def test_a_broken_context_ends_its_rank(prepare: Launch) -> None:
    case = Case("synchronize", fault="gpu_error", health=5.0, restarts=1)
    check(prepare, case, lost={1: (1, KILLED, -signal.SIGABRT)})


def test_a_kernel_without_end_is_the_hard_timeouts(prepare: Launch) -> None:
    case = Case("synchronize", fault="gpu_sleep", restarts=1)
    check(prepare, case, lost={1: (KILLED, -signal.SIGTERM)})


def test_the_monitor_process_has_nothing_of_the_device(prepare: Launch) -> None:
    job = run(prepare, Case("synchronize", restarts=1))
    assert {str(line["monitor"]) for line in job.lines("right")} == {"[]"}
