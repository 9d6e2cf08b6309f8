"""A rank that has lost the store, or a part of the wrapper, leaves for the first reason."""

import logging
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from nvrx_core.errors import RestartAbort, StoreLost
from nvrx_core.events.log import EventLog
from nvrx_core.inprocess.call.early_exit import EarlyExit
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.inprocess.state import State


class Part:
    """Notes what it is asked for; stands for connections, monitor process and function."""

    endpoint = ("here", 1234)
    fork_server = SimpleNamespace(reason="OSError: planted")

    def __init__(self, running=True):
        self.asked, self.running = [], running

    def __getattr__(self, name):
        return lambda *arguments: self.asked.append(name)

    def is_running(self):
        return self.running

    def lost(self):
        return StoreLost(*self.endpoint)


def early_exit(part):
    return EarlyExit(
        State(rank=0, world_size=1), EventLog(None, 0), part,
        monitor=part, abort=part,
    )  # fmt: skip


def elsewhere(act):
    thread = threading.Thread(target=act, name="nvrx-monitor-thread")
    thread.start()
    thread.join(5)


def test_a_rank_without_a_reason_stays():
    leaving = early_exit(Part())
    leaving.raise_if_due()
    assert leaving.reason is None


def test_the_first_reason_counts():
    part = Part()
    leaving = early_exit(part)
    assert isinstance(leaving.store_lost("no answer"), StoreLost)
    leaving.watcher_failed(KeyError("injected"))
    with pytest.raises(StoreLost):
        leaving.raise_if_due()
    assert part.asked.count("leave_early") == 1


def test_a_lost_store_is_reported_and_its_connections_are_cut_before_the_main_thread_is_interrupted():
    part = Part()
    elsewhere(lambda: early_exit(part).store_lost("no answer"))
    assert part.asked == ["store_lost", "cut", "leave_early"]


def test_a_watcher_that_fails_takes_the_rank_with_it():
    part = Part()
    leaving = early_exit(part)
    elsewhere(lambda: leaving.watcher_failed(KeyError("injected")))
    with pytest.raises(RestartAbort, match="nvrx-monitor-thread failed: KeyError"):
        leaving.raise_if_due()
    assert part.asked == ["leave_early"]


def test_a_watcher_that_the_store_fails_has_lost_the_store():
    leaving = early_exit(Part())
    elsewhere(lambda: leaving.watcher_failed(StoreFailure("reset")))
    with pytest.raises(StoreLost):
        leaving.raise_if_due()


@pytest.mark.parametrize("running", [True, False])
def test_without_a_fork_server_the_rank_stays_as_long_as_its_monitor_process_runs(running):
    leaving = early_exit(Part(running))
    leaving.fork_server_lost()
    assert (leaving.reason is None) == running
    assert running or "could be kept running: OSError: planted; see" in str(leaving.reason())


def test_a_rank_whose_monitor_process_is_replaced_stays():
    part = Part()
    leaving = early_exit(part)
    leaving.monitor_replaced("lost to SIGKILL")
    assert (leaving.reason, part.asked) == (None, ["notify"])


@pytest.mark.parametrize("error", [StoreFailure("reset"), KeyError("injected")])
def test_a_log_handler_that_raises_keeps_no_rank_from_leaving(error, monkeypatch):
    class Hostile(logging.Handler):
        def handle(self, record):
            raise SystemExit(5)

    monkeypatch.setattr(logging.getLogger("nvrx_core.inprocess"), "handlers", [Hostile()])
    part = Part()
    leaving = early_exit(part)

    def fail():
        with suppress(SystemExit):
            leaving.watcher_failed(error)

    elsewhere(fail)
    with pytest.raises((StoreLost, RestartAbort)):
        leaving.raise_if_due()
    assert part.asked[-1:] == ["leave_early"]
