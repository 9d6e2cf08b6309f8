"""Rank monitors: a hung rank is ended by the signal it is to be ended by, and nobody else is."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvrx_core.fault_tolerance import FaultToleranceConfig, RankMonitorServer
from nvrx_core.fault_tolerance.peers import Survey
from nvrx_core.fault_tolerance.wire import Listener, connect
from tests.harness.process.host import eventually
from tests.harness.process.monitored import MonitoredRank, is_monitor

STEP = {"rank_section_timeouts": {"step": 0.5}}
Start = Callable[..., MonitoredRank]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    ranks: list[MonitoredRank] = []

    def start(case: str, config: dict[str, Any] | None = None, **environment: str) -> MonitoredRank:
        ranks.append(MonitoredRank(tmp_path, case, config, **environment))
        return ranks[-1]

    yield start
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize(
    ("case", "config", "reason"),
    [
        ("section", STEP, "section 'step' open"),
        ("nested", STEP, "section 'step' open"),
        ("crossing", STEP, "section 'step' open"),
        ("heartbeat", {"rank_heartbeat_timeout": 0.5}, "no heartbeat"),
        ("nothing", {"rank_heartbeat_timeout": 0.5}, "no heartbeat"),
        ("out_of_section", {"rank_out_of_section_timeout": 0.5}, "no section opened"),
        ("stopped", {"rank_heartbeat_timeout": 0.5}, "no heartbeat"),
        ("forked", {"rank_heartbeat_timeout": 0.5}, "no heartbeat"),
        ("learned", {"min_learned_timeout": 0.5}, "no (heartbeat|section opened)"),
    ],
)
def test_a_hung_rank_is_ended(start: Start, case: str, config: dict[str, Any], reason: str) -> None:
    rank = start(case, config)
    monitors = rank.read("monitored")["monitors"]
    code, errors = rank.finish()
    assert code == -signal.SIGKILL
    told = rf"rank 0 \(pid {rank.pid}\) is hung: {reason} for \S+ s \(timeout 0\.5 s\)"
    assert re.search(told, errors), errors
    assert ("its process is stopped" in errors) == (case == "stopped")
    assert len(monitors) == 2
    assert eventually(lambda: not any(map(is_monitor, monitors)), 5.0)


def test_a_hung_rank_is_ended_while_nobody_reads_the_log(start: Start) -> None:
    rank = start("section", STEP)
    fd = os.open(f"/proc/{rank.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    with os.fdopen(fd, "wb", buffering=0) as stderr:
        while stderr.write(bytes(1 << 12)):
            pass
    assert rank.process.wait(30) == -signal.SIGKILL


def test_the_configured_signal_ends_it(start: Start) -> None:
    rank = start("section", {**STEP, "rank_termination_signal": "SIGTERM"})
    assert rank.finish()[0] == -signal.SIGTERM


def test_a_pause_after_timeouts_were_learned_from_short_times_ends_no_rank(start: Start) -> None:
    code, errors = start("learned", {}).finish()
    assert code == 0, errors


@pytest.mark.parametrize("case", ["healthy", "silent"])
def test_a_rank_that_is_not_hung_is_left_alone(start: Start, case: str) -> None:
    rank = start(case, {"rank_section_timeouts": {"step": 2.0}, "rank_heartbeat_timeout": 2.0})
    rank.read("hang")
    if case == "healthy":
        time.sleep(3.0)
        assert rank.process.poll() is None, rank.finish()[1]
        rank.process.stdin.write("x")  # type: ignore[union-attr]
    assert rank.finish()[0] == 0


@pytest.mark.parametrize(
    ("target", "signum"),
    [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)],
    ids=["fork server killed", "monitor killed", "monitor stopped"],
)
def test_a_lost_monitor_is_replaced_and_knows_what_the_rank_wrote(start: Start, target: int, signum: int) -> None:
    rank = start("section", {"rank_section_timeouts": {"step": 4.0}})
    rank.read("hang")
    before = rank.monitors()
    os.kill(before[target], signum)
    assert eventually(lambda: len(now := rank.monitors()) == 2 and now[1] != before[1], 20)
    code, errors = rank.finish()
    assert code == -signal.SIGKILL
    assert "section 'step' open for 4" in errors


def test_a_monitor_serves_one_rank_after_another(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "monitor.socket"
    config = FaultToleranceConfig(rank_section_timeouts={"step": 2.0})
    monitor = RankMonitorServer.run_in_subprocess(config, path)
    try:
        for _ in range(2):
            rank = start("section", FT_RANK_MONITOR_IPC_SOCKET=str(path))
            assert rank.finish()[0] == -signal.SIGKILL
        healthy = start("healthy", FT_RANK_MONITOR_IPC_SOCKET=str(path))
        healthy.read("hang")
        busy = start("section", FT_RANK_MONITOR_IPC_SOCKET=str(path))
        assert f"pid {healthy.pid} is monitored already" in busy.finish()[1]
        assert healthy.process.poll() is None
        assert monitor.is_alive()
        assert oct(path.stat().st_mode & 0o777) == "0o600"
    finally:
        monitor.terminate()
    assert not monitor.is_alive()
    assert not path.exists()


def test_a_monitor_says_how_far_a_rank_had_come_that_has_died(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "monitor.socket"
    monitor = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(rank_heartbeat_timeout=0.5), path)
    try:
        assert start("heartbeat", FT_RANK_MONITOR_IPC_SOCKET=str(path)).finish()[0] == -signal.SIGKILL
        with connect(path, within=5.0) as connection:
            connection.send({"type": "progress"})
            assert connection.receive()[0] == {"rank": 0, "steps": 0, "heartbeats": 5}
    finally:
        monitor.terminate()


def test_a_monitor_that_is_lost_during_a_request_is_reported_as_lost(tmp_path: Path) -> None:
    peer = Listener(tmp_path / "peer.socket")
    survey = Survey(tmp_path / "own.socket", now=0.0)
    (asked,) = survey.pending
    peer.close()
    survey.receive(asked)
    assert survey.lost
    assert survey.is_complete(now=0.0)
