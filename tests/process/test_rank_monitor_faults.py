"""What befalls monitors, ranks and machines: nobody is blamed for it, and a rank that hangs is ended all the same."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nvrx_core.fault_tolerance import (
    FaultToleranceConfig,
    RankMonitorClient,
    RankMonitorClientError,
    RankMonitorServer,
    start_local_monitor,
)
from nvrx_core.fault_tolerance.server import RankMonitorProcess
from nvrx_core.fault_tolerance.wire import Listener
from nvrx_core.progress.page import ProgressField
from nvrx_core.progress.stage import Stage
from tests.harness.process.host import eventually, stop
from tests.harness.process.monitored import MonitoredRank, children, monitors_of

NO_TIMEOUTS = {"initial_rank_heartbeat_timeout": None, "rank_heartbeat_timeout": None, "log_level": "ERROR"}
PROTECTED_WITHIN = 5.0
"""Seconds; it takes tens of milliseconds where nothing else runs."""
Start = Callable[..., MonitoredRank]


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    ranks, folder = list[MonitoredRank](), tmp_path_factory.mktemp("f")

    def start(case: str, config: dict[str, Any] | None = None, **environment: str) -> MonitoredRank:
        ranks.append(MonitoredRank(folder, case, config, **environment))
        return ranks[-1]

    yield start
    for rank in ranks:
        rank.close()


@pytest.fixture
def monitor(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[RankMonitorProcess]:
    """A monitor of this process, or of one that is started."""
    path = tmp_path_factory.mktemp("m") / "rank.socket"
    monkeypatch.setenv("FT_RANK_MONITOR_IPC_SOCKET", str(path))
    monkeypatch.setenv("RANK", "0")
    config = FaultToleranceConfig(**NO_TIMEOUTS, rank_section_timeouts={"step": 0.5})  # type: ignore[arg-type]
    monitor = RankMonitorServer.run_in_subprocess(config, path)
    yield monitor
    monitor.terminate()


# Monitors


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("section", [False, True], ids=["idle", "in a section"])
def test_a_lost_monitor_is_replaced_soon(
    monitor: RankMonitorProcess, capsys: pytest.CaptureFixture[str], signum: int, section: bool
) -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    if section:
        client.start_section("other")
    lost, begun = monitor.pid, time.monotonic()
    os.kill(lost, signum)
    assert eventually(lambda: monitor.page[ProgressField.RANK_MONITOR_PID] not in (0, lost), PROTECTED_WITHIN)
    with capsys.disabled():
        print(f" protected again after {1e3 * (time.monotonic() - begun):.0f} ms", end=" ")
    assert monitor.pid == monitor.page[ProgressField.RANK_MONITOR_PID]
    client.shutdown_workload_monitoring()
    client.init_workload_monitoring()
    client.shutdown_workload_monitoring()


def test_a_section_that_is_opened_after_its_monitor_was_lost_is_watched(
    start: Start, monitor: RankMonitorProcess
) -> None:
    rank = start("stands_by", FT_RANK_MONITOR_IPC_SOCKET=os.environ["FT_RANK_MONITOR_IPC_SOCKET"])
    rank.read("idle")
    os.kill(monitor.pid, signal.SIGKILL)
    rank.tell()
    assert rank.finish()[0] == -signal.SIGKILL


def test_a_monitor_that_stands_still_holds_up_nothing(monitor: RankMonitorProcess) -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    (server,) = children(os.getpid())
    worker = monitor.pid
    stop(server, worker)  # nobody replaces a monitor whose server stands still, too
    begun = time.monotonic()
    for _ in range(10_000):
        client.send_heartbeat()
        client.start_section("other")
        client.end_section("other")
    client.load_state_dict({"current_timeouts": {}})
    client.shutdown_workload_monitoring()
    assert time.monotonic() - begun < 5.0
    for pid in (worker, server):
        os.kill(pid, signal.SIGCONT)


def test_a_rank_that_connects_while_its_monitor_is_lost_gets_the_next_one(monitor: RankMonitorProcess) -> None:
    (server,) = children(os.getpid())
    stop(server, monitor.pid)
    errors = list[BaseException]()
    client = RankMonitorClient()

    def init() -> None:
        try:
            client.init_workload_monitoring()
        except BaseException as error:  # boundary: told by the assertion
            errors.append(error)

    thread = threading.Thread(target=init)
    thread.start()
    time.sleep(0.2)
    os.kill(monitor.pid, signal.SIGKILL)
    os.kill(server, signal.SIGCONT)
    thread.join(20)
    assert not errors
    client.shutdown_workload_monitoring()


# Ranks


def test_a_rank_that_dies_in_a_wrapped_call_leaves_a_page_on_which_the_next_is_judged(
    start: Start, monitor: RankMonitorProcess
) -> None:
    path = {"FT_RANK_MONITOR_IPC_SOCKET": os.environ["FT_RANK_MONITOR_IPC_SOCKET"]}
    first = start("heartbeat", **path)
    first.read("hang")
    monitor.page[ProgressField.STAGE] = Stage.RUNNING
    refused = start("heartbeat", **path)
    assert f"pid {first.pid} is monitored already" in refused.finish()[1]
    os.kill(first.pid, signal.SIGKILL)
    assert first.finish()[0] == -signal.SIGKILL
    assert start("section", **path).finish()[0] == -signal.SIGKILL


def test_a_pause_of_the_machine_kills_no_rank(start: Start) -> None:
    rank = start("healthy", {"rank_heartbeat_timeout": 2.0, "workload_check_interval": 0.5})  # it may have no beat yet
    rank.read("hang")
    server, worker = rank.monitors()
    stop(server, worker, rank.pid)
    time.sleep(3.0)
    for pid in (worker, rank.pid, server):
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)
    time.sleep(1.0)
    assert rank.process.poll() is None, rank.finish()
    assert rank.monitors() == [server, worker]
    rank.tell()
    code, errors = rank.finish()
    assert code == 0
    assert "excluded from timeouts" in errors


def test_no_monitor_reads_a_wall_clock() -> None:
    root = Path(__file__).parents[2] / "nvrx_core"
    sources = [path for folder in ("fault_tolerance", "progress") for path in (root / folder).glob("*.py")]
    assert len(sources) > 20
    reading = [path.name for path in sources if re.search(r"\btime\.time|datetime|CLOCK_REALTIME", path.read_text())]
    assert reading == []


# Peers


def test_a_rank_that_waits_for_a_slower_one_is_excused_for_a_bounded_time(start: Start) -> None:
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "WORLD_SIZE": "2"}
    config = {"rank_heartbeat_timeout": 1.5, "initial_rank_heartbeat_timeout": 60.0}
    ranks = [start("beats", config, RANK=str(rank), NVRX_TEST_BEATS=str(5 - rank), **together) for rank in (0, 1)]
    for rank in ranks:
        rank.read("hang")
    assert ranks[1].finish()[0] == -signal.SIGKILL
    code, errors = ranks[0].finish()
    assert code == -signal.SIGKILL
    assert "rank 0 waits for ranks that are behind it" in errors
    silences = re.findall(r"is hung: no heartbeat for ([\d.]+) s", errors)
    assert len(silences) == 1
    assert float(silences[0]) >= 3.0


@pytest.mark.parametrize("answer", [None, b"half", b'{"rank": 7, "steps": 0, "heartbeats": 1e9}'])
def test_a_malformed_answer_of_a_peer_does_not_excuse_a_hung_rank(start: Start, answer: bytes | None) -> None:
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512", "WORLD_SIZE": "2", "NVRX_TEST_BEATS": "3"}
    rank = start("beats", {"rank_heartbeat_timeout": 0.5}, **together)
    rank.read("monitored")
    (socket,) = rank.folder.glob(f"run/*/{rank.pid}.socket")
    with ExitStack() as stack:
        listener = Listener(socket.parent / "1.socket")
        stack.callback(listener.close)
        if answer is not None:
            asked = threading.Thread(target=_answer, args=(listener, answer))
            asked.start()
            stack.callback(asked.join)
        assert rank.finish()[0] == -signal.SIGKILL


def _answer(listener: Listener, answer: bytes) -> None:
    from nvrx_core.process.waiting import readable

    if readable([listener], 20.0) and (connection := listener.accept()) is not None:
        with connection:
            connection._channel.send(answer)


# A monitor of the rank's own


def test_a_local_monitor_ends_with_its_client_and_can_be_started_again(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("l")
    monkeypatch.setenv("NVRX_RUNTIME_DIR", str(folder / "run"))
    monkeypatch.setenv("RANK", "0")
    config, clients = FaultToleranceConfig(**NO_TIMEOUTS), list[RankMonitorClient]()  # type: ignore[arg-type]
    for _ in range(2):
        clients.append(start_local_monitor(config))
        assert len(monitors_of(os.getpid())) == 2
        assert (folder / "run").stat().st_mode & 0o777 == 0o700
    assert [client.is_initialized for client in clients] == [False, True]
    other = RankMonitorClient()
    other.init_workload_monitoring()
    assert len(monitors_of(os.getpid())) == 2
    other.shutdown_workload_monitoring()
    assert monitors_of(os.getpid()) == []
    assert [path for path in (folder / "run").glob("*/*") if path.is_socket()] == []
    with pytest.raises(RankMonitorClientError, match="there is no rank monitor"):
        other.init_workload_monitoring()


def test_a_folder_that_others_can_enter_is_refused(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("o")
    folder.chmod(0o755)
    monkeypatch.setenv("NVRX_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(OSError, match="not a folder that only this user can enter; set NVRX_RUNTIME_DIR to one"):
        start_local_monitor(FaultToleranceConfig(**NO_TIMEOUTS))  # type: ignore[arg-type]
