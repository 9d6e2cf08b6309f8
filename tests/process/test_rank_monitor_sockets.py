"""A rank monitor under fire: strangers on its socket end their own connections, and its rank stays watched."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nvrx_core.fault_tolerance import FaultToleranceConfig, RankMonitorClient, RankMonitorServer
from nvrx_core.fault_tolerance.server import RankMonitorProcess
from nvrx_core.progress.page import ProgressField
from tests.harness.process.host import eventually
from tests.harness.process.hostile import QUESTION, ask_monitor, hostile, inundate, send_descriptors

STALL = 1.0
"""Seconds that an honest question may wait, at most."""


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankMonitorProcess]:
    config = FaultToleranceConfig(rank_heartbeat_timeout=None, log_level="ERROR")
    monitor = RankMonitorServer.run_in_subprocess(config, tmp_path_factory.mktemp("monitor") / "rank.socket")
    yield monitor
    monitor.terminate()


@pytest.fixture
def path(monitor: RankMonitorProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The socket of a monitor that watches this process, before and after the test."""
    path, pid = monitor._listener.path, monitor.pid
    monkeypatch.setenv("FT_RANK_MONITOR_IPC_SOCKET", str(path))
    monkeypatch.setenv("RANK", "0")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    ask_monitor(path)
    yield path
    ask_monitor(path)
    assert (monitor.pid, monitor.page[ProgressField.ATTACHED_PID]) == (pid, os.getpid())
    assert monitor.page[ProgressField.ATTACHED_AT] > 0
    client.shutdown_workload_monitoring()


def files(monitor: RankMonitorProcess) -> int:
    return len(os.listdir(f"/proc/{monitor.pid}/fd"))


def memory(monitor: RankMonitorProcess) -> int:
    """Its private memory in kB."""
    rollup = Path(f"/proc/{monitor.pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))


def test_malformed_messages_end_their_connections_only(monitor: RankMonitorProcess, path: Path) -> None:
    inundate(path, 500, seed=0, every=100)
    opened, used = files(monitor), memory(monitor)
    assert inundate(path, 20_000, seed=1, every=100) < STALL
    assert eventually(lambda: files(monitor) <= opened, 20)
    assert memory(monitor) < used + 2_000


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_million_malformed_messages_in_ten_parts(monitor: RankMonitorProcess, path: Path, seed: int) -> None:
    opened, used = files(monitor), memory(monitor)
    assert inundate(path, 100_000, seed=seed, every=500) < STALL
    assert eventually(lambda: files(monitor) <= opened, 20)
    assert memory(monitor) < used + 2_000


def test_connections_that_say_nothing_are_dropped_when_there_are_too_many(
    monitor: RankMonitorProcess, path: Path
) -> None:
    before = files(monitor)
    with ExitStack() as stack:
        silent = [stack.enter_context(hostile(path)) for _ in range(1_000)]
        assert ask_monitor(path) < STALL
        assert files(monitor) <= before + 64
        assert silent[0].recv(1) == b""
        silent[-1].send(QUESTION)
        assert b"heartbeats" in silent[-1].recv(1000)
    assert eventually(lambda: files(monitor) <= before, 20)


def test_a_rank_waits_while_the_queue_of_its_monitor_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(log_level="ERROR"), tmp_path / "rank.socket")
    monkeypatch.setenv("FT_RANK_MONITOR_IPC_SOCKET", str(monitor._listener.path))
    monkeypatch.setenv("RANK", "0")
    client = RankMonitorClient()
    try:
        with ExitStack() as stack:
            monitor.stop()
            for _ in range(65):
                stack.enter_context(hostile(monitor._listener.path))
            monitor.spawn()
            client.init_workload_monitoring()
        assert client.is_initialized
    finally:
        client.shutdown_workload_monitoring()
        monitor.terminate()


@pytest.mark.parametrize("number", [4, 50])
def test_descriptors_of_malformed_messages_are_closed(monitor: RankMonitorProcess, path: Path, number: int) -> None:
    before = files(monitor)
    for message in (QUESTION, b'{"type": "look"}', b"half", b"x" * 70_000) * 20:
        send_descriptors(path, message, number)
    assert eventually(lambda: files(monitor) <= before, 20)


def test_a_stream_socket_is_not_accepted(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as channel, pytest.raises(OSError, match="wrong type"):
        channel.connect(os.fspath(path))
