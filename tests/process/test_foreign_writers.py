"""A stranger writes garbage into the keys of a running job: the job goes on, or ends with a text; it never hangs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from nvrx_core.store.keys import StoreKeys
from tests.harness.process import host
from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_nothing_left, assert_nothing_lost, assert_promises, restart

from .conftest import Launch

KEYS = StoreKeys("job", 0, 0)
STORE_LOST = 75
QUICK = {"heartbeat_interval": 0.1, "heartbeat_timeout": 2.0}
GARBAGE = b"\xff{garbage"


def jobs_with(launch: Launch, tmp_path: Path, writings: Iterable[tuple[str, bytes]]) -> dict[tuple[str, bytes], Job]:
    """For each of the writings a job whose rank 1 fails after the stranger has written; side by side.

    The store outlives the ranks: monitor processes report those that leave, and would look for a lost store for 5 s.
    """
    go = tmp_path / "go"
    jobs = {writing: launch({(1, 0, 3): "exception"}, gate=str(go), wrapper=QUICK) for writing in writings}
    for writing, job in jobs.items():
        for rank in range(3):
            job.await_line("step", initial_rank=rank, step=2)
        write(job, *writing)
    go.touch()
    for job in jobs.values():
        job.finish_ranks(40)
    stores = {job.store_pid for job in jobs.values()}
    assert host.eventually(lambda: all(job.template.leftovers().keys() <= stores for job in jobs.values()), 5)
    for job in jobs.values():
        job.stop_store()
    return jobs


def write(job: Job, key: str, value: bytes) -> None:
    assert job.endpoint is not None
    address, _, port = job.endpoint.rpartition(":")
    dist.TCPStore(address, int(port), timeout=timedelta(seconds=5)).set(key, value)


def test_values_written_a_second_time_change_nothing(launch: Launch, tmp_path: Path) -> None:
    keys = [KEYS.round(0).arrivals(0), KEYS.lease(1), KEYS.left(1)]
    for job in jobs_with(launch, tmp_path, [(key, GARBAGE) for key in keys]).values():
        assert_nothing_lost(job, restart("EXCEPTION", by=[1]))


EVENTS = [
    (KEYS.round(0).event, GARBAGE),
    (KEYS.round(0).event, b'{"interruption": "EXCEPTION"}'),
    (KEYS.round(1).event, GARBAGE),
]


def test_a_malformed_event_costs_one_restart(launch: Launch, tmp_path: Path) -> None:
    for writing, job in jobs_with(launch, tmp_path, EVENTS).items():
        assert set(job.codes.values()) == {0}, writing
        assert_promises(job)
        assert_nothing_left(job)


def test_ranks_that_read_a_malformed_rendezvous_exit_and_the_others_continue(launch: Launch, tmp_path: Path) -> None:
    (job,) = jobs_with(launch, tmp_path, [(KEYS.round(1).master, GARBAGE)]).values()
    assert job.codes[0] == 0
    assert set(job.codes.values()) <= {0, STORE_LOST}
    assert_promises(job)
    assert_nothing_left(job)


UNREADABLE = [
    (KEYS.round(0).decision, GARBAGE),
    (KEYS.round(0).decision, b'{"iteration": 0}'),
    (KEYS.round(0).arrived, GARBAGE),
    (KEYS.round(1).completed, GARBAGE),
]


def test_a_malformed_value_ends_the_job_with_a_clear_error(launch: Launch, tmp_path: Path) -> None:
    for writing, job in jobs_with(launch, tmp_path, UNREADABLE).items():
        assert set(job.codes.values()) == {STORE_LOST}, writing
        assert all("the control store at" in job.errors(rank) for rank in range(3)), writing
        assert_promises(job)
        assert_nothing_left(job)


DECISIONS = [
    b'{"iteration": 0, "lost": [7], "terminated": [], "culprits": [], "step": 0}',
    b'{"iteration": 0, "lost": [0, 1, 2], "terminated": [], "culprits": [], "step": 0}',
    b'{"iteration": 0, "lost": [], "terminated": [0, 1, 2], "culprits": [], "step": 0}',
]


def test_a_foreign_decision_ends_the_job_with_a_clear_error(launch: Launch, tmp_path: Path) -> None:
    for writing, job in jobs_with(launch, tmp_path, [(KEYS.round(0).decision, text) for text in DECISIONS]).items():
        assert 0 not in job.codes.values(), writing
        assert all(job.errors(rank).strip() for rank in range(3)), writing
        assert_nothing_left(job)
