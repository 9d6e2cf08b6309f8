"""Ranks of one job that contradict each other at entry: all of them end, and say what differs."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
import torch.distributed as dist

from nvrx_core.store.keys import StoreKeys
from tests.harness.process import host
from tests.harness.process.job import TRAIN, Job
from tests.harness.process.oracle import assert_no_process_left

from .conftest import Launch

BARRIER = {"soft_timeout": 0.5, "hard_timeout": 1.0, "heartbeat_timeout": 1.5, "barrier_timeout": 2.0}


def start(job: Job, key: int, rank: int, **more: str) -> None:
    """Starts a process under a key of its own, which names its output, with any RANK."""
    environment = job.environment(key, RANK=str(rank), **more)
    job.pids[key] = job.template.fork(TRAIN, [], environment, job.directory / f"rank-{key}")


def await_claim(job: Job, rank: int) -> None:
    """Waits until a rank is on its way in, and would hear of a contradiction."""
    place, port = (job.endpoint or f"127.0.0.1:{job.port + 1}").split(":")
    assert host.eventually(lambda: int(port) in host.listening(), 20)
    store = dist.TCPStore(place, int(port), is_master=False, wait_for_workers=False)
    store.wait([StoreKeys("job", 0, 0).claim(rank)], timedelta(seconds=20))


@pytest.mark.parametrize("first", [0, 1], ids=["the larger world first", "the smaller world first"])
@pytest.mark.parametrize("hosted", [False, True], ids=["own store", "hosted by rank 0"])
def test_ranks_with_different_world_sizes_end_with_the_same_error(prepare: Launch, first: int, hosted: bool) -> None:
    job = prepare(world=2, store=not hosted)
    if not hosted:
        job.start_store()
    for rank in (first, 1 - first):
        start(job, rank, rank, WORLD_SIZE="3" if rank == 0 else "2")
    job.finish(20)
    assert job.codes == {0: 1, 1: 1}
    for rank in (0, 1):
        (told,) = [line for line in job.errors(rank).splitlines() if "has WORLD_SIZE" in line]
        assert "WORLD_SIZE=3" in told
        assert "WORLD_SIZE=2" in told
        assert "rank 0 (" in told
        assert "rank 1 (" in told
    assert_no_process_left(job)


@pytest.mark.parametrize("hosted", [False, True], ids=["own store", "hosted by rank 0"])
def test_two_processes_with_one_rank_end_with_all_others(prepare: Launch, hosted: bool) -> None:
    job = prepare(world=3, store=not hosted)
    if not hosted:
        job.start_store()
    start(job, 0, 0)
    await_claim(job, 0)
    for key in (1, 2):
        start(job, key, 1)
    job.finish(20)
    assert job.codes == {0: 1, 1: 1, 2: 1}
    name = socket.gethostname()
    for key in job.codes:
        (told,) = [line for line in job.errors(key).splitlines() if "started with the same RANK" in line]
        assert "JobMismatch" in told
        assert {f"{name} pid {job.pids[twin]}" in told for twin in (1, 2)} == {True}
    assert_no_process_left(job)


@pytest.mark.parametrize(("hosted", "late"), [(False, False), (True, True)], ids=["at once", "later"])
def test_one_process_too_many_ends_a_job_that_has_just_begun(prepare: Launch, hosted: bool, late: bool) -> None:
    job = prepare(world=2, store=not hosted, steps=5000)
    if not hosted:
        job.start_store()
    for key, rank in enumerate((0, 1, 1)):
        if late and key == 2:
            job.await_line("step", initial_rank=1)
        start(job, key, rank)
        if key == 0:
            await_claim(job, 0)  # the verdict on the others is about this start of the job
    job.finish(30)
    assert job.codes == {0: 1, 1: 1, 2: 1}
    name = socket.gethostname()
    for key in job.codes:
        told = job.errors(key).splitlines()[-1]
        assert "JobMismatch" in told
        assert all(f"{name} pid {job.pids[twin]}" in told for twin in (1, 2))
    assert_no_process_left(job)


def test_a_second_job_on_the_same_port_does_not_train_in_the_store_of_the_first(prepare: Launch) -> None:
    """Its rank 0 cannot host a store of its own, and must not be taken for a lost rank of a job in the first one's."""
    first, second = (prepare(world=2, store=False, steps=5000) for _ in range(2))
    second.port = first.port
    first.start().await_line("step", initial_rank=1)
    second.start().finish(30)
    assert second.codes == {0: 1, 1: 1}
    assert second.lines("enter") == []
    assert "cannot host the control store" in second.errors(0).splitlines()[-1]
    assert "started with the same RANK" in second.errors(1).splitlines()[-1]
    first.finish(30)
    assert first.codes == {0: 1, 1: 1}, "it had just begun"
    assert_no_process_left(first)


@pytest.mark.parametrize("hosted", [False, True], ids=["own store", "hosted by rank 0"])
def test_a_rank_that_is_never_started_is_named_by_all_others(prepare: Launch, hosted: bool) -> None:
    job = prepare(world=4, store=not hosted, wrapper=BARRIER)
    if not hosted:
        job.start_store()
    for rank in (0, 1, 3):
        start(job, rank, rank)
    job.finish(20)
    assert job.codes == {0: 1, 1: 1, 3: 1}
    for rank in job.codes:
        told = job.errors(rank).splitlines()[-1]
        assert (
            "BarrierTimeout: not all ranks have entered within 2 s; missing ranks: 2 (of 4); present: 0-1, 3 on "
            in told
        )
        assert "start the missing ranks" in told
    assert_no_process_left(job)
