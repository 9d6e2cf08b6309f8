"""Rendezvous that are not ours: torch's `static` and `etcd`, and handlers that users have registered."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.process.etcd import Etcd
from tests.harness.process.host import eventually, free_ports, stop
from tests.harness.process.launch import WORKERS, Launch, Start, left_in
from tests.harness.process.monitored import environment_of

PLUG_IN = "[torchrun.handlers]\nown = tests.harness.process.workers.users_rendezvous:creator\n"


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
    """When restarts are spent, and when a launcher leaves: nobody can take its place."""
    static = ("--rdzv-backend", "static", "--master-port", str(free_ports()))
    failing = [start("fails", *static, "--node-rank", rank) for rank in "01"]
    ended = [job.finish() for job in failing]
    assert [code for code, _ in ended] == [1, 1], "".join(log for _, log in ended)
    jobs = [start("waits", *static, "--node-rank", rank) for rank in "01"]
    for job in jobs:
        job.read(2, "start")
    jobs[1].process.terminate()
    code, log = jobs[0].finish()
    assert code == 1, log
    assert "and nobody can take its place" in log


@pytest.mark.nightly
def test_a_static_rendezvous_whose_host_stands_still_ends_the_others_after_its_timeout(start: Start) -> None:
    static = ("--rdzv-backend", "static", "--master-port", str(free_ports()), "--rdzv-conf", "timeout=15")
    host, other = (start("waits", *static, "--node-rank", rank) for rank in "01")
    for job in (host, other):
        job.read(2, "start")
    stop(host.process.pid)
    code, log = other.finish()
    assert code == 75, log
    assert "the job ends with code 75: the rendezvous is lost" in log


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
    plug_in = tmp_path / "site" / "own-1.0.dist-info"
    plug_in.mkdir(parents=True)
    (plug_in / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (plug_in / "entry_points.txt").write_text(PLUG_IN)
    path = os.pathsep.join([str(plug_in.parent), *sys.path])
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
