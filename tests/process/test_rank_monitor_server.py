"""What a rank asks of its launcher, and a rank monitor as the one who starts it sees it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from nvrx_core.fault.hang_report import HangReport, RankCondition
from nvrx_core.fault_tolerance import (
    FaultToleranceConfig,
    RankMonitorClient,
    RankMonitorClientError,
    RankMonitorServer,
    WorkloadAction,
    WorkloadControlRequest,
)
from nvrx_core.fault_tolerance.server import RankMonitorProcess
from nvrx_core.fault_tolerance.wire import Connection, Listener, WireError, connect
from nvrx_core.process.waiting import readable
from tests.harness.process.monitored import MonitoredRank


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankMonitorProcess]:
    monitor = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), tmp_path_factory.mktemp("s") / "rank.socket")
    yield monitor
    monitor.terminate()


# The launcher


def test_a_request_without_a_launcher_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FT_LAUNCHER_IPC_SOCKET", raising=False)
    request = WorkloadControlRequest(WorkloadAction.ExcludeThisNode)
    with pytest.raises(RankMonitorClientError, match="FT_LAUNCHER_IPC_SOCKET is not set"):
        RankMonitorClient().send_workload_control_request(request)


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        ({"type": "ok"}, None),
        ({"type": "error", "cause": "not now"}, "the launcher at .* refuses: not now"),
        (None, "the launcher at .* does not answer: .* has closed the connection"),
    ],
)
def test_a_request_reaches_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answer: dict[str, str] | None,
    refusal: str | None,
) -> None:
    launcher, received = Listener(tmp_path / "launcher.socket"), list[dict[str, Any]]()
    monkeypatch.setenv("FT_LAUNCHER_IPC_SOCKET", str(launcher.path))
    monkeypatch.setenv("RANK", "3")

    def serve() -> None:
        readable([launcher], 10.0)
        connection = launcher.accept()
        assert connection is not None
        readable([connection], 10.0)
        with connection:
            received.append(connection.receive()[0])
            if answer is not None:
                connection.send(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    request = WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "the loss is NaN")
    try:
        if refusal is None:
            RankMonitorClient().send_workload_control_request(request)
        else:
            with pytest.raises(RankMonitorClientError, match=refusal):
                RankMonitorClient().send_workload_control_request(request)
    finally:
        thread.join()
        launcher.close()
    expected = {"type": "workload_control", "action": "ShutdownWorkload", "description": "the loss is NaN", "rank": 3}
    assert received == [expected]


# The monitor process, as the one who starts it sees it


def test_a_monitor_looks_like_a_process(monitor: RankMonitorProcess) -> None:
    assert monitor.is_alive()
    assert monitor.exitcode is None
    monitor.join(0.01)
    assert os.stat(f"/proc/{monitor.pid}").st_uid == os.getuid()


@pytest.mark.parametrize("content", ["file", "folder"])
def test_a_monitor_does_not_replace_what_is_no_socket(tmp_path: Path, content: str) -> None:
    path = tmp_path / "precious"
    path.write_text("weights") if content == "file" else path.mkdir()
    with pytest.raises(OSError, match="precious: this file is no socket; remove it, or use another path"):
        RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), path)
    assert path.exists()


def test_two_monitors_do_not_share_a_socket(monitor: RankMonitorProcess) -> None:
    with pytest.raises(OSError, match="another process listens there"):
        RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), monitor._listener.path)


def test_a_path_that_is_too_long_is_refused_with_its_bound(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="a socket's path has at most 107 bytes"):
        RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), tmp_path / ("x" * 108))


# A launcher that is told of a hung rank


@pytest.mark.parametrize("answers", [True, False])
def test_a_hung_rank_is_ended_when_its_launcher_has_judged_and_soon_if_that_does_not_answer(
    tmp_path_factory: pytest.TempPathFactory, answers: bool
) -> None:
    with ExitStack() as stack:
        launcher, rank = launched(tmp_path_factory.mktemp("m"), stack)
        report = hang_of(launcher, stack)
        if answers:
            with suppress(WireError):  # a machine that stalls: it is over
                report.send({"type": "ok"})
        assert rank.finish()[0] == -signal.SIGKILL


def test_a_launcher_asks_where_a_hung_rank_is(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("m")
    with ExitStack() as stack:
        launcher, rank = launched(folder, stack, case="ignores", rank_termination_signal=signal.SIGTERM)
        hang_of(launcher, stack)
        with connect(folder / "rank-0.socket", within=10.0) as connection:
            connection.send({"type": "evidence", "until": time.monotonic() + 60.0})
            evidence = HangReport.decode(connection.receive()[0]["report"])
        assert evidence.place is not None
        assert evidence.place.file.endswith("/workers/monitored.py")
        assert (evidence.pid, evidence.stalled) == (rank.pid, True)


def test_a_question_whose_answer_would_come_too_late_is_answered_with_what_there_is(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("m")
    with ExitStack() as stack:
        launcher, rank = launched(folder, stack, case="ignores", rank_termination_signal=signal.SIGTERM)
        hang_of(launcher, stack)
        with connect(folder / "rank-0.socket", within=10.0) as connection:
            connection.send({"type": "evidence", "until": time.monotonic()})
            evidence = HangReport.decode(connection.receive()[0]["report"])
        assert (evidence.condition, evidence.wait) == (RankCondition.UNKNOWN, "asked, and late")
        assert evidence.pid == rank.pid


def launched(
    folder: Path, stack: ExitStack, *, case: str = "heartbeat", **settings: Any
) -> tuple[Listener, MonitoredRank]:
    """Start a launcher's socket, and a monitored rank that hangs after some heartbeats."""
    launcher = Listener(folder / "launcher.ipc")
    stack.callback(launcher.close)
    config = FaultToleranceConfig(initial_rank_heartbeat_timeout=60.0, rank_heartbeat_timeout=0.5, **settings)
    monitor = RankMonitorProcess(config, folder / "rank-0.socket", launcher=str(launcher.path))
    stack.callback(monitor.terminate)
    monitor.start()
    rank = MonitoredRank(folder, case, None, FT_RANK_MONITOR_IPC_SOCKET=str(folder / "rank-0.socket"))
    stack.callback(rank.close)
    return launcher, rank


def hang_of(launcher: Listener, stack: ExitStack) -> Connection:
    """Answer questions for the progress of other nodes; return the connection on which a hang is told."""
    while readable([launcher], 30.0):
        connection = launcher.accept()
        assert connection is not None
        stack.callback(connection.close)
        assert readable([connection], 10.0)
        message, _ = connection.receive()
        if message["type"] == "hang":
            return connection
        with suppress(WireError):  # too late for it
            connection.send({"type": "ok", "ranks": []})
    raise AssertionError("the launcher was told nothing")
