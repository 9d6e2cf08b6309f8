"""The end of a rank by its monitor: it waits for the launcher's verdict, and is called off when the rank goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvrx_core.fault_tolerance import process as module
from nvrx_core.fault_tolerance.plan import RankMonitorPlan
from nvrx_core.fault_tolerance.process import RankMonitor
from nvrx_core.fault_tolerance.watched import start_time
from nvrx_core.fault_tolerance.wire import Connection, Listener
from nvrx_core.progress.page import Page, ProgressField, SectionField
from nvrx_core.progress.stage import Stage

SECOND = 10**9
TIMEOUT = 10.0


class Host:
    """A monitor of this process, and its launcher, in virtual time.

    Attributes:
        sent: the signals that the monitor has sent.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.sent, self.told = 1000.0, list[signal.Signals](), list[Connection]()
        self.launcher, self.listener = Listener(folder / "launcher.ipc"), Listener(folder / "rank-0.socket")
        self.page = Page(1)
        self.page[ProgressField.ATTACHED_PID] = os.getpid()
        self.page[ProgressField.ATTACHED_START] = start_time(os.getpid())
        self.page[ProgressField.HEARTBEAT_TIMEOUT], self.page[ProgressField.RANK] = int(TIMEOUT * SECOND), 7
        self.page[ProgressField.ATTACHED_AT] = int(self.now * SECOND)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(module, "send", lambda _, signals: self.sent.extend(signals))
        nobody = SimpleNamespace(deadline=0.0, pending={}, answers=[], lost=False, close=lambda: None)
        nobody.is_complete = lambda *, now: True
        monkeypatch.setattr(module, "Survey", lambda *_, **__: nobody)
        plan = RankMonitorPlan(
            0, 0, "", (0, 0), 5.0, launcher=str(self.launcher.path), termination_signal=signal.SIGTERM
        )
        self.monitor = RankMonitor(plan, self.page, self.listener)

    def beat(self) -> None:
        self.page[ProgressField.HEARTBEAT_AT] = int(self.now * SECOND)

    def turn(self, after: float = 0.0) -> None:
        """Let the monitor have its turn in time, some seconds later."""
        self.now += after
        self.monitor.turn(self.now)

    def judge(self) -> None:
        """Let the monitor find that the rank is hung."""
        self.beat()
        self.turn()
        for after in (TIMEOUT, 0.0):
            self.turn(after)

    def heard(self) -> list[dict[str, Any]]:
        """What the launcher is told."""
        found = []
        while (connection := self.launcher.accept()) is not None:
            self.told.append(connection)
            found.append(connection.receive()[0])
        return found

    def close(self) -> None:
        for each in (*self.told, self.launcher, self.listener):
            each.close()
        if self.monitor._rank is not None:
            self.monitor._rank.close()
        self.page.close()


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    made = Host(tmp_path_factory.mktemp("m"), monkeypatch)
    yield made
    made.close()


def test_a_rank_is_not_ended_before_the_launcher_has_judged(host: Host) -> None:
    host.judge()
    (report,) = host.heard()
    assert (report["type"], report["rank"], report["pid"]) == ("hang", 7, os.getpid())
    host.turn(0.99)
    assert host.sent == []
    host.told[0].send({"type": "ok"})
    assert host.monitor._termination is not None
    (fd,) = host.monitor._termination.fds()
    host.monitor._handle(fd)
    host.turn()
    assert host.sent == [signal.SIGTERM, signal.SIGCONT]


def test_a_rank_is_ended_after_a_second_without_a_verdict(host: Host) -> None:
    host.judge()
    host.turn(1.0)
    assert host.sent == [signal.SIGTERM, signal.SIGCONT]
    assert [each["type"] for each in host.heard()] == ["hang"]


def test_a_rank_that_goes_on_meanwhile_is_not_ended_and_the_launcher_is_told(host: Host) -> None:
    host.judge()
    host.now += 0.5
    host.beat()
    host.turn(0.5)
    assert host.sent == []
    assert [each["type"] for each in host.heard()] == ["hang", "recovered"]
    for after in (0.0, TIMEOUT - 1.0):
        host.turn(after)
    assert (host.sent, host.heard()) == ([], [])
    for after in (1.0, 0.0, 1.0):  # it hangs again, and is judged anew
        host.turn(after)
    assert host.sent == [signal.SIGTERM, signal.SIGCONT]


def test_a_sign_of_life_that_does_not_concern_its_limit_does_not_call_its_end_off(host: Host) -> None:
    """Heartbeats of another thread do not end the section that hangs."""
    slot = host.page.declare_section("step")
    host.page.words[slot + SectionField.OPENED_AT] = host.page[ProgressField.SECTION_AT] = int(host.now * SECOND)
    host.page.words[slot + SectionField.TIMEOUT] = int(TIMEOUT * SECOND)
    host.judge()
    host.beat()
    host.turn(1.0)
    assert host.sent == [signal.SIGTERM, signal.SIGCONT]


@pytest.mark.parametrize("does", ["enters a call", "is shut down"])
def test_a_rank_that_is_not_the_monitor_s_any_more_is_not_ended(host: Host, does: str) -> None:
    host.judge()
    if does == "enters a call":
        host.page[ProgressField.STAGE] = Stage.RUNNING
    else:
        host.page[ProgressField.ATTACHED_AT] = 0
    host.turn(1.0)
    assert host.monitor._termination is None
    assert host.sent == []
    assert [each["type"] for each in host.heard()] == ["hang", "recovered"]


def test_of_a_rank_that_exits_meanwhile_it_stays_the_reason(host: Host) -> None:
    host.judge()
    assert host.monitor._rank is not None
    host.monitor._rank.has_exited = lambda: True  # type: ignore[method-assign]
    host.page[ProgressField.ATTACHED_AT] = 0
    host.turn(1.0)
    assert host.sent == []
    assert [each["type"] for each in host.heard()] == ["hang"]


def test_a_grace_period_that_is_shorter_than_the_wait_kills_nobody(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.2)
    host = Host(tmp_path_factory.mktemp("m"), monkeypatch)
    host.judge()
    host.turn(0.5)
    assert host.sent == []
    host.turn(0.5)
    assert host.sent == [signal.SIGTERM, signal.SIGCONT]
    host.turn(1.0)
    assert host.sent[2:] == [signal.SIGKILL]
    host.close()
