"""A signal that a scheduler or a terminal sends to all processes of a job stops it, and disturbs no last save."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_no_process_left

from .conftest import Launch

WORKER = "tests.harness.process.workers.stopped"
LEAVES = {signal.SIGTERM: ("leave", 143), signal.SIGINT: ("nothing", -signal.SIGINT)}


def start(prepare: Launch, case: str, world: int) -> Job:
    job = prepare(world=world).start(WORKER, NVRX_TEST_CASE=case)
    for rank in range(world):
        job.await_line("training", initial_rank=rank)
    time.sleep(0.1)
    return job


@pytest.mark.parametrize("apart", [0.0, 0.001, 0.002])
@pytest.mark.parametrize("signum", LEAVES, ids=lambda each: each.name)
def test_all_ranks_leave_also_those_that_are_interrupted_meanwhile(
    prepare: Launch, signum: signal.Signals, apart: float
) -> None:
    case, code = LEAVES[signum]
    job = start(prepare, case, world=3)
    for rank in range(3):
        job.kill(rank, signum)
        time.sleep(apart)
    job.finish(20)
    assert job.codes == dict.fromkeys(range(3), code), [job.errors(rank)[-2000:] for rank in range(3)]
    assert_no_process_left(job)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1], ids=lambda each: each.name)
def test_monitor_processes_last_as_long_as_their_ranks(prepare: Launch, signum: signal.Signals) -> None:
    job = start(prepare, "save", world=2)
    ranks = set(job.pids.values())
    for pid in job.template.leftovers().keys() - ranks - {job.store_pid}:
        os.kill(pid, signum)
    for rank in range(2):
        job.kill(rank, signal.SIGTERM)
    job.finish(20)
    assert job.codes == {0: 0, 1: 0}, [job.errors(rank)[-2000:] for rank in range(2)]
    assert len(job.lines("saved")) == 2
    assert not job.events("monitor_replaced")
    assert_no_process_left(job)
