"""etcd as the control store: faults as with any store, and its own outages."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.process.etcd import Etcd, cluster_in, etcd_in
from tests.harness.process.oracle import assert_no_process_left, assert_nothing_lost, restart

from .conftest import Launch


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with etcd_in(tmp_path / "etcd") as etcd:
        yield etcd


def in_etcd(etcd: Etcd) -> dict[str, object]:
    return {"store": False, "kept_in": f"etcd {etcd.endpoint}"}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_dead_rank_is_left_behind_whichever_it_is(launch: Launch, etcd: Etcd, rank: int) -> None:
    job = launch({(rank, 0, 3): "kill"}, collective=True, **in_etcd(etcd)).finish()
    assert_nothing_lost(job, restart("TERMINATED", {rank}, {rank}), codes={rank: -signal.SIGKILL})


def test_an_outage_in_a_restart_is_survived(launch: Launch, etcd: Etcd, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = launch({(1, 0, 2): "exception"}, collective=True, gate=str(gate), **in_etcd(etcd))
    job.await_line("step", initial_rank=0, step=1)
    etcd.kill()
    gate.touch()
    job.await_line("fault_injected")
    time.sleep(1.0)
    etcd.start()
    assert_nothing_lost(job.finish(), restart("EXCEPTION", {1}))


def test_any_member_of_a_cluster_may_be_lost(launch: Launch, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with cluster_in(tmp_path) as members:
        kept_in = f"etcd {','.join(member.endpoint for member in members)}"
        job = launch(
            {(1, 0, 2): "exception", (0, 1, 2): "kill"}, collective=True, gate=str(gate), store=False, kept_in=kept_in
        )
        job.await_line("step", initial_rank=0, step=1)
        members[0].kill()
        gate.touch()
        job.finish()
    expected = [restart("EXCEPTION", {1}), restart("TERMINATED", {0}, {0})]
    assert_nothing_lost(job, *expected, codes={0: -signal.SIGKILL})


def test_all_ranks_exit_when_etcd_is_lost_permanently(launch: Launch, etcd: Etcd) -> None:
    """What counts is when the call ends: the interpreter's own way out takes a part of a busy machine's time."""
    job = launch({(0, 0, 100_000): "exception"}, store=False, kept_in=f"etcd-3s {etcd.endpoint}")
    for rank in range(3):
        job.await_line("step", initial_rank=rank)
    start = time.monotonic()
    etcd.kill()
    job.finish(30)
    left, raised = ([line["at"] - start for line in job.lines(what)] for what in ("leave", "raised"))
    assert len(raised) == 3
    assert all(2 < after < 8 for after in raised), raised
    assert max(raised) - max(left) < 2.5, "a rank without a store waits for nobody"
    assert job.codes == dict.fromkeys(range(3), 75)
    for rank in range(3):
        assert sum(etcd.endpoint in line for line in job.errors(rank).splitlines()) == 1, job.errors(rank)
    assert_no_process_left(job)
