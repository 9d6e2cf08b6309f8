"""A static rendezvous; and those that are not ours: torch's `etcd`, and handlers that users have registered."""

from __future__ import annotations

import functools
import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from nvrx_launcher.rendezvous.tcp_store import TcpRendezvous
from nvrx_launcher.rendezvous_settings import RendezvousSettings

from nvrx_core.store.endpoint import StoreConnectionError
from tests.harness.process.etcd import Etcd
from tests.harness.process.host import eventually, free_ports
from tests.harness.process.launch import WORKERS, Launch, Start, left_in, path_with_handler
from tests.harness.process.monitored import environment_of


@pytest.fixture
def start(launcher: Start) -> Start:
    return functools.partial(_started, launcher)


def _started(launcher: Start, case: str, *options: str, **more: str) -> Launch:
    return launcher(case, "--nnodes", "2", "--rdzv-id", "job", *options, **more)


def assert_recovered(jobs: list[Launch]) -> list[list[int]]:
    """A worker was killed, all were restarted once; returns the ranks of each node after that."""
    ends = [job.finish(100.0) for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert all("was ended by SIGKILL" in log for _, log in ends), "the failure is named on all nodes"
    return [
        sorted(each["rank"] for each in job.events if (each["event"], each["cycle"]) == ("start", 1)) for job in jobs
    ]


def test_a_static_rendezvous_has_the_ranks_that_it_is_given(start: Start) -> None:
    """Node 1 is started first; each launcher is told of a failure on the other node, which torchrun's are not."""
    static = ("--rdzv-backend", "static", "--master-port", str(free_ports()), "--max-restarts", "1")
    jobs = [start("killed", *static, "--node-rank", rank) for rank in ("1", "0")]
    assert assert_recovered(jobs) == [[2, 3], [0, 1]]


def test_a_static_job_ends_with_the_same_code_on_all_nodes(start: Start) -> None:
    static = ("--rdzv-backend", "static", "--master-port", str(free_ports()))
    failing = [start("fails", *static, "--node-rank", rank) for rank in "01"]
    ended = [job.finish() for job in failing]
    assert [code for code, _ in ended] == [1, 1], "".join(log for _, log in ended)


def test_a_node_of_a_static_job_is_replaced_by_one_of_its_rank(start: Start) -> None:
    """The second one of rank 1 waits; the job goes on with it when the first one is killed, with the same ranks."""
    static = ("--rdzv-backend", "static", "--master-port", str(free_ports()))
    host, first = (start("waits", *static, "--node-rank", rank) for rank in "01")
    for job in (host, first):
        job.read(2, "start")
    second = start("waits", *static, "--node-rank", "1")
    second.await_log("has --node-rank 1 like")
    first.process.kill()
    assert sorted(each["rank"] for each in second.read(2, "start", cycle=1)) == [2, 3]
    assert sorted(each["rank"] for each in host.read(2, "start", cycle=1)) == [0, 1]
    host.process.terminate()
    assert host.finish()[0] == 143
    second.process.terminate()
    second.finish()


def test_a_node_rank_that_nobody_has_is_named(start: Start) -> None:
    static = ("--rdzv-backend", "static", "--master-port", str(free_ports()), "--rdzv-conf", "timeout=1")
    code, log = start("done", *static, "--node-rank", "0").finish()
    assert code == 1, log
    assert "1 of 2 nodes have joined in 1 s: " in log
    assert "; missing: --node-rank 1" in log


def test_launchers_that_join_with_different_backends_are_told(start: Start) -> None:
    """Two of c10d at a static rendezvous: both are told, and neither is taken for the other's substitute."""
    port = ("--nnodes", "3", "--master-port", str(free_ports()))
    host = start("done", *port, "--rdzv-backend", "static", "--node-rank", "0")
    host.await_log("host the rendezvous")
    others = [start("done", *port) for _ in range(2)]
    for job in others:
        job.await_log("was given --rdzv-backend c10d")
    host.await_log("without --node-rank 0-2: ")
    host.process.terminate()
    logs = [job.finish()[1] for job in (host, *others)]
    assert all("what it was given counts: --rdzv-backend static" in log for log in logs[1:])
    assert "; missing: --node-rank 1-2; without --node-rank 0-2: " in logs[0]
    assert "can only take its place" not in logs[0]


def test_torchs_etcd_rendezvous_is_used_as_it_is(start: Start, tmp_path: Path) -> None:
    etcd = Etcd(tmp_path / "etcd", "--enable-v2")
    etcd.start()
    try:
        where = ("--rdzv-backend", "etcd", "--rdzv-endpoint", etcd.endpoint, "--max-restarts", "1")
        ranks = assert_recovered([start("killed", *where) for _ in range(2)])
    finally:
        etcd.kill()
    assert sorted(ranks) == [[0, 1], [2, 3]]


def test_a_users_handler_is_found_by_its_entry_point(start: Start, tmp_path: Path) -> None:
    path = path_with_handler(tmp_path)
    where = ("--rdzv-backend", "own", "--rdzv-endpoint", f"127.0.0.1:{free_ports()}", "--max-restarts", "1")
    ranks = assert_recovered([start("killed", *where, PYTHONPATH=path) for _ in range(2)])
    assert sorted(ranks) == [[0, 1], [2, 3]]


def test_a_users_handler_is_one_that_an_imported_module_has_registered(tmp_path: Path) -> None:
    command = [sys.executable, str(WORKERS / "users_rendezvous.py"), f"127.0.0.1:{free_ports()}"]
    environment = environment_of(tmp_path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"0": "1", "1": "1"}
    assert eventually(lambda: not left_in(tmp_path), 10.0)


def test_a_backend_that_nobody_has_registered_is_an_error(start: Start) -> None:
    code, log = start("done", "--rdzv-backend", "zoo").finish()
    assert code == 2, log
    assert "--rdzv-backend: The rendezvous backend 'zoo' is not registered." in log
    assert "known are c10d, etcd, etcd-v2, " in log


def test_the_host_of_a_static_rendezvous_may_be_behind_a_translated_address() -> None:
    """As behind a service of Kubernetes; whoever is told by is_host=1 to host listens there and nowhere else."""
    somebody_elses = ("192.0.2.1", free_ports())
    rendezvous = TcpRendezvous(somebody_elses, RendezvousSettings(is_host=True))
    with ExitStack() as cleanup:
        rendezvous.host(cleanup)
        assert rendezvous.is_hosted
        socket.create_connection(("127.0.0.1", somebody_elses[1])).close()
    told = TcpRendezvous(somebody_elses, RendezvousSettings.of("is_host=1", "c10d"))
    with ExitStack() as cleanup, pytest.raises(StoreConnectionError, match="cannot host the rendezvous"):
        told.host(cleanup)


def test_the_host_of_a_static_rendezvous_may_start_before_its_name_is_known() -> None:
    """As that of a pod, which is published once it runs."""
    rendezvous = TcpRendezvous(("train-0.invalid", port := free_ports()), RendezvousSettings(is_host=True))
    with ExitStack() as cleanup:
        rendezvous.host(cleanup)
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_node_of_a_static_rendezvous_that_nobody_hosts_says_who_should(start: Start) -> None:
    static = ("--rdzv-backend", "static", "--master-port", str(free_ports()))
    code, log = start("done", *static, "--node-rank", "1", "--rdzv-conf", "store_connect_wait_seconds=1").finish()
    assert code == 1, log
    assert "the launcher with --node-rank 0 must run, and be reached by --master-addr and --master-port" in log
