"""Stores other than torch's TCPStore, and what is handed out over them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from nvrx_core.inprocess.store import EtcdStore
from nvrx_core.store.keys import StoreKeys
from tests.harness.process import host
from tests.harness.process.etcd import etcd_in
from tests.harness.process.job import TRAIN
from tests.harness.process.oracle import assert_no_process_left, assert_nothing_lost, restart

from .conftest import Launch

KINDS = ("file", "sqlite", "etcd")


@pytest.fixture(params=KINDS)
def kept_in(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param != "etcd":
        yield f"{request.param} {tmp_path / 'store'}"
        return
    with etcd_in(tmp_path / "etcd") as etcd:
        yield f"etcd {etcd.endpoint}"


def test_a_dead_rank_is_left_behind(launch: Launch, kept_in: str) -> None:
    job = launch({(0, 0, 3): "kill"}, collective=True, store=False, kept_in=kept_in).finish()
    assert_nothing_lost(job, restart("TERMINATED", {0}, {0}), codes={0: -signal.SIGKILL})


def test_what_is_handed_out_works_over_any_store(prepare: Launch, kept_in: str) -> None:
    job = prepare(store=False, kept_in=kept_in).start("tests.harness.process.workers.stores").finish()
    assert job.codes == {0: 0, 1: 0, 2: 0}, job.errors(0)
    assert_no_process_left(job)
    for iteration in range(2):
        assert sorted(line["number"] for line in job.lines("store", iteration=iteration)) == [1, 2, 3]
        told = job.lines("exchange", iteration=max(0, iteration - 1))
        assert [line["initial"] for line in told] == [line["keys"] for line in told] == [[0, 1, 2]] * len(told)
    assert len(job.lines("exchange")) == 6


def test_what_is_handed_out_works_over_a_store_without_clone(prepare: Launch) -> None:
    job = prepare(store=False, kept_in="without-clone").start("tests.harness.process.workers.stores").finish()
    assert job.codes == {0: 0, 1: 0, 2: 0}, job.errors(1)
    for iteration in range(2):
        assert sorted(line["number"] for line in job.lines("store", iteration=iteration)) == [1, 2, 3]


def test_a_second_run_of_the_same_name_starts_afresh(launch: Launch, kept_in: str) -> None:
    first = launch({(1, 0, 2): "exception"}, store=False, kept_in=kept_in).finish()
    assert_nothing_lost(first, restart("EXCEPTION", {1}))
    assert_nothing_lost(launch(store=False, kept_in=kept_in).finish())


def test_a_completed_job_leaves_no_key_in_etcd(launch: Launch, tmp_path: Path) -> None:
    with etcd_in(tmp_path / "etcd") as etcd:
        job = launch({(1, 0, 2): "exception"}, store=False, kept_in=f"etcd {etcd.endpoint}").finish()
        assert_nothing_lost(job, restart("EXCEPTION", {1}))
        store = EtcdStore(etcd.endpoint)
        everything = {"key": "AA==", "range_end": "AA==", "count_only": True}
        assert int(store._etcd.call("/kv/range", everything).get("count", 0)) == 0
        store.cut()


def test_a_run_on_the_keys_of_a_killed_one_starts_afresh(launch: Launch, tmp_path: Path) -> None:
    kept_in = f"sqlite {tmp_path / 'store'}"
    first = launch({(1, 0, 10_000): "exception"}, store=False, kept_in=kept_in)
    for rank in range(3):
        first.await_line("step", initial_rank=rank)
    first.template.sweep()
    second = launch({(1, 0, 2): "exception"}, store=False, kept_in=kept_in).finish()
    assert_nothing_lost(second, restart("EXCEPTION", {1}))


def test_two_processes_with_one_rank_leave_and_name_both(prepare: Launch) -> None:
    job = prepare(world=2)
    job.start_store()
    address, _, port = str(job.endpoint).rpartition(":")
    control = dist.TCPStore(address, int(port), is_master=False, wait_for_workers=False)
    for key in (0, 1):
        job.pids[key] = job.template.fork(TRAIN, [], job.environment(0), job.directory / f"rank-{key}")
        assert host.eventually(lambda: control.check([StoreKeys("job", 0, 0).claim(0)]), 20)
    job.finish(20)
    assert job.codes == {0: 1, 1: 1}
    for key in (0, 1):
        assert "were started with the same RANK" in job.errors(key)
        assert all(f"pid {pid})" in job.errors(key) for pid in job.pids.values()), job.errors(key)


def test_a_store_that_must_be_there_and_is_not_is_soon_given_up(prepare: Launch) -> None:
    endpoint = f"127.0.0.1:{host.free_ports()}"
    job = prepare(world=2, store=False)
    job.start(NVRX_STORE_ENDPOINT=endpoint, NVRX_STORE_LISTENS_WITHIN="0.5").finish()
    assert set(job.codes.values()) == {1}
    assert f"no control store on {endpoint} within 0.5 s" in job.errors(0)
