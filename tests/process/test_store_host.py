"""The process that hosts the store: started by hand, lost under way, and in the last place silent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harness.process import host
from tests.harness.process.job import ROOT, Job
from tests.harness.process.oracle import assert_no_process_left

from .conftest import Launch

STORE_LOST = 75
EXITS = "tests.harness.process.workers.exits"
LEAVES = {
    "exits with 3, before": (3, False),
    "exits with 3, at the barrier": (3, False),
    "exits with 3, at the barrier of the host": (3, False),
    "exits with 3, meanwhile": (3, False),
    "exits with 0, meanwhile": (0, False),
    "raises, at the barrier": (1, True),
    "aborts, meanwhile": (1, True),
    "ends in finalize": (1, True),
    "fails, before": (STORE_LOST, True),
    "fails, at the barrier": (STORE_LOST, True),
    "ends with 4 whatever comes, before": (STORE_LOST, False),
}
"""How a rank leaves, or fails, and when the store is killed: the exit code, and whether the exception is shown."""
IN_RANK_0 = ("exits with 3, at the barrier of the host",)
HOST_LEAVES = "tests.harness.process.workers.host_leaves"
WAYS = {"exit 3": 3, "health check": 1, "discarded": 1}
"""How the host leaves, and the exit code that it leaves with."""
TRAINS_ON = 6
"""Seconds that the others train for when the host has left."""
GLOO = "gloo_tcp_loop"


def assert_left_with_one_line(job: Job, ranks: set[int], endpoint: str) -> None:
    for rank in ranks:
        assert job.codes[rank] == STORE_LOST, job.codes
        said = [line for line in job.errors(rank).splitlines() if endpoint in line]
        assert len(said) == 1, f"rank {rank} named the store in {len(said)} lines"
        assert ("nvrx-store" in said[0]) == (job.store_pid is None), "advice to do what is done"
        assert "frame #" not in job.errors(rank)
    assert_no_process_left(job)


@pytest.mark.parametrize("collective", [False, True], ids=["alone", "in a collective"])
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_all_leave_when_the_store_is_lost(launch: Launch, collective: bool, blow: signal.Signals) -> None:
    job = launch({(0, 0, 10_000): "exception"}, collective=collective)
    for rank in range(3):
        job.await_line("step", initial_rank=rank)
    assert job.store_pid is not None
    assert job.endpoint is not None
    os.kill(job.store_pid, blow)
    job.finish(30)
    assert_left_with_one_line(job, {0, 1, 2}, job.endpoint)


def test_all_leave_when_rank_0_is_lost_with_the_store_in_it(launch: Launch) -> None:
    job = launch({(0, 0, 3): "kill"}, collective=True, store=False).finish(30)
    assert job.codes[0] == -signal.SIGKILL
    assert_left_with_one_line(job, {1, 2}, f"127.0.0.1:{job.port + 1}")


def test_a_host_that_leaves_serves_its_clients_until_they_are_done(prepare: Launch) -> None:
    jobs = {way: prepare(store=False) for way in WAYS}
    for way, job in jobs.items():
        job.start(HOST_LEAVES, NVRX_TEST_CASE=way, NVRX_TEST_SECONDS=str(TRAINS_ON))
    for job in jobs.values():
        job.await_line("enter", initial_rank=2, iteration=1)
    assert host.eventually(lambda: not any(host.threads(job.pids[0], GLOO) for job in jobs.values()), 10.0)
    before = {way: host.cpu_seconds(job.pids[0]) for way, job in jobs.items()}
    time.sleep(4.0)
    busy = {way: host.cpu_seconds(job.pids[0]) - before[way] for way, job in jobs.items()}
    assert max(busy.values()) < 1.0, f"seconds of CPU in 4 s: {busy}"
    for job in jobs.values():
        job.finish()
    for way, job in jobs.items():
        assert job.codes == {0: WAYS[way], 1: 0, 2: 0}, way
        assert {line["result"] for line in job.lines("done")} == {1}
        assert "is lost" not in job.errors(0), way
        assert_no_process_left(job)


def test_a_rank_that_leaves_ends_in_its_own_way_when_the_store_is_lost(prepare: Launch) -> None:
    jobs = {case: prepare(world=2, store=case not in IN_RANK_0) for case in LEAVES}
    for case, job in jobs.items():
        if job.own_store:
            job.start_store()
        job.start(EXITS, NVRX_TEST_CASE=case, NVRX_TEST_STORE=str(job.store_pid or ""))
    for job in jobs.values():
        job.finish()
    assert {case: (job.codes[1], "injected" in job.errors(1)) for case, job in jobs.items()} == LEAVES
    for case, job in jobs.items():
        assert job.codes[0] == (STORE_LOST if job.own_store else -signal.SIGKILL), case
        assert job.errors(1).count("is lost. Next") <= 1, case
        assert_no_process_left(job)


def test_a_heartbeat_interval_beyond_the_limit_for_a_silent_store_loses_no_rank(prepare: Launch) -> None:
    case = {"NVRX_TEST_CASE": "rare heartbeat", "NVRX_TEST_SECONDS": str(TRAINS_ON)}
    job = prepare(world=2).start(HOST_LEAVES, **case).finish()
    assert job.codes == {0: 0, 1: 0}
    assert [line["result"] for line in job.lines("done")] == [0, 0]
    assert_no_process_left(job)


def test_a_rank_that_nothing_interrupts_is_killed_when_the_store_is_lost(launch: Launch) -> None:
    job = launch({(1, 0, 3): "gil_locked"}, world=2)
    job.await_line("fault_injected", initial_rank=1)
    assert job.store_pid is not None
    assert job.endpoint is not None
    os.kill(job.store_pid, signal.SIGKILL)
    job.finish(30)
    assert job.codes[1] in (-signal.SIGTERM, -signal.SIGKILL)
    assert_left_with_one_line(job, {0}, job.endpoint)


def store_command(*arguments: str, starter: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [*starter, sys.executable, "-m", "nvrx_core.store", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("address", "why"), [("192.0.2.1", "Cannot assign"), ("no.such.host", "ot known"), ("", "empty")]
)
def test_the_store_command_listens_nowhere_but_on_the_address_it_was_given(address: str, why: str) -> None:
    with store_command("--host", address) as store:
        said, told = store.communicate(timeout=60)
    assert (store.returncode, said) == (2, "")
    last = told.splitlines()[-1]
    assert "error: " in last
    assert why in last
    assert "0.0.0.0 for all that it has" in last
    assert "Traceback" not in told


def test_the_store_command_listens_on_all_interfaces_when_told_to(prepare: Launch) -> None:
    with store_command("--host", "0.0.0.0") as store:
        assert store.stdout is not None
        name, _, port = store.stdout.readline().strip().rpartition(":")
        assert name == socket.gethostname()
        socket.create_connection(("127.0.0.1", int(port)), timeout=5).close()
        store.terminate()
        assert store.wait(10) == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_store_command_ends_on_a_signal_while_it_imports_torch(signum: signal.Signals) -> None:
    with store_command("--port", "0") as store:
        maps = Path(f"/proc/{store.pid}/maps")
        assert host.eventually(lambda: "libtorch_cpu" in maps.read_text(), 30)
        store.send_signal(signum)
        _, told = store.communicate(timeout=10)
    assert store.returncode in (-signum, 0)
    assert told == ""


def test_the_store_command_ignores_signals_that_its_starter_ignores() -> None:
    ignoring = ["sh", "-c", "trap '' INT TERM HUP; exec \"$@\"", "sh"]
    with store_command(starter=ignoring) as store:
        assert store.stdout is not None
        _, _, port = store.stdout.readline().strip().rpartition(":")
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            store.send_signal(signum)
        assert host.ignored(store.pid) >= {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        socket.create_connection(("127.0.0.1", int(port)), timeout=5).close()
        store.kill()


def test_the_store_command_prints_its_endpoint_and_ends_on_sigterm(prepare: Launch) -> None:
    job = prepare()
    job.start_store()
    assert job.endpoint is not None
    assert job.endpoint.startswith("127.0.0.1:")
    assert job.store_pid is not None
    job.pids[0], job.store_pid = job.store_pid, None
    job.kill(0, signal.SIGTERM)
    assert job.finish(10).codes == {0: 0}
    assert "Traceback" not in job.errors("store")
    assert_no_process_left(job)
