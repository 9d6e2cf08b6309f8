"""Rank monitors that are lost, or cannot be started: the job goes on, and the log says who is not watched."""

import logging
import math
from types import SimpleNamespace

import pytest
from nvrx_launcher.workers.monitors import RankMonitors

from nvrx_core.backoff import RestartBackoff


class FakeLoop:
    def __init__(self):
        self.watched = {}

    def watch(self, fd, readable):
        self.watched[fd] = readable

    def forget(self, fd):
        del self.watched[fd]


OPTIONS = SimpleNamespace(workers=1, run_id="job", max_nodes=1)


class FakeMonitor:
    def __init__(self, *_, **__):
        self.sentinel, self.is_started = 7, False
        self.starts, self.fails, self.news = 0, 0, None
        self.deadline, self.is_silent = math.inf, False

    def spawn(self):
        if self.fails:
            self.fails -= 1
            raise OSError(24, "Too many open files")
        self.starts, self.is_started = self.starts + 1, True

    def poll(self):
        return self.news

    def tick(self, *, now):
        self.deadline = math.inf
        return not self.is_silent

    def stop(self):
        self.is_started = False

    terminate = stop


@pytest.fixture
def made(tmp_path):
    told, loop = [], FakeLoop()
    history = SimpleNamespace(monitor_replaced=lambda *what: told.append(what))
    monitors = RankMonitors(
        loop,
        None,
        tmp_path / "launcher.ipc",
        OPTIONS,
        history=history,
        make=FakeMonitor,
    )
    monitors.start()
    yield SimpleNamespace(monitors=monitors, monitor=monitors._monitors[0], told=told, loop=loop)
    monitors.close()
    assert loop.watched == {}


def lose(made, now):
    made.monitor.news = ""
    made.monitors._poll(0, now)


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_monitor_whose_fork_server_does_not_answer_is_replaced(made, caplog, is_silent):
    made.monitor.deadline, made.monitor.is_silent = 100.0, is_silent
    assert made.monitors.deadline == 100.0
    made.monitors.tick(now=100.0)
    assert made.monitor.starts == 1 + is_silent
    assert ("the fork server of local rank 0's monitor does not answer, and was killed" in caplog.text) == is_silent


def test_a_monitor_replaced_by_its_fork_server_is_recorded(made):
    made.monitor.news = "killed by SIGKILL"
    made.monitors._poll(0, 1.0)
    assert made.told == [(0, "killed by SIGKILL")]
    made.monitor.news = None
    made.monitors._poll(0, 1.0)
    assert (len(made.told), made.monitor.starts) == (1, 1)


def test_one_that_is_lost_is_started_anew_at_once(made):
    begun = made.monitors._starts[0]._started
    lose(made, begun + 1.0)
    assert (made.monitor.starts, made.told, made.monitors.deadline) == (2, [(0, "restarted")], math.inf)


def test_one_that_is_lost_again_and_again_is_started_after_growing_pauses(made, caplog):
    now, pauses = made.monitors._starts[0]._started, []
    lose(made, now)
    for _ in range(9):
        lose(made, now)
        assert not made.monitor.is_started
        pauses.append(made.monitors.deadline - now)
        made.monitors.tick(now=now)  # too early
        now = made.monitors.deadline
        made.monitors.tick(now=now)
        assert made.monitor.is_started
    assert pauses == pytest.approx([RestartBackoff.PAUSES.pause(k) for k in range(1, 10)])
    assert made.monitors.deadline == math.inf
    assert "no rank monitor for local rank 0, which is not watched: the one before was lost at once" in caplog.text
    lose(made, now + RestartBackoff.STABLE)
    assert made.monitor.is_started


def test_one_that_cannot_be_started_is_tried_again(made, caplog):
    now = made.monitors._starts[0]._started
    made.monitor.fails = 2
    with caplog.at_level(logging.ERROR):
        lose(made, now)
    assert "which is not watched: [Errno 24] Too many open files; the next attempt is in 1 s" in caplog.text
    made.monitors.tick(now=now + 1.0)
    assert made.monitors.deadline == now + 3.0
    made.monitors.tick(now=now + 3.0)
    assert made.monitor.is_started


def test_the_first_ones_must_start(tmp_path):
    monitors = RankMonitors(
        FakeLoop(),
        None,
        tmp_path / "launcher.ipc",
        OPTIONS,
        history=None,
        make=FakeMonitor,
    )
    monitors._monitors[0].fails = 1
    with pytest.raises(OSError, match="Too many"):
        monitors.start()
