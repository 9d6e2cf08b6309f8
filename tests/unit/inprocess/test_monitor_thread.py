"""The monitor thread, where it ends otherwise than by the end of the job."""

import logging
import os
import signal
import sys
import threading

import pytest

from nvrx_core.flow import operation
from nvrx_core.inprocess import monitor_thread as module
from nvrx_core.inprocess.call.function_abort import FunctionAbort
from nvrx_core.inprocess.interruption.interrupt import FunctionThread, Interrupter
from nvrx_core.inprocess.monitor_thread import MonitorThread
from nvrx_core.inprocess.protocol import flows as protocol
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart
from nvrx_core.inprocess.protocol.round import Finish, Rounds, RoundTimeouts
from nvrx_core.inprocess.state import State
from nvrx_core.process.signal_safe import SignalSafeCondition
from nvrx_core.progress.page import Page, ProgressField


class Store:
    """A store in which a wait does what a test wants."""

    def __init__(self, wait, event):
        self.wait, self.event = wait, event

    @operation
    def await_event(self, iteration):
        self.event()

    @operation
    def await_decision(self, iteration):
        return self.wait()


@pytest.fixture
def page():
    page = Page(1)
    yield page
    page.close()


def nothing():
    return None


class Abort(FunctionAbort):
    """Ends a function by an abort that does what a test wants."""

    def __init__(self, page, abort, interrupter, changed):
        state, part = State(rank=0, world_size=1), Part()
        super().__init__(
            lambda _: abort(), state, page,
            interrupter=interrupter, observer=part, sample=part, hangs=part, changed=changed,
        )  # fmt: skip


class Part:
    """A part of which nothing is wanted."""

    def __getattr__(self, name):
        return lambda *_: None


class Losses:
    """Notes what has ended the thread."""

    def __init__(self):
        self.errors, self.told = [], threading.Event()

    def watcher_failed(self, error):
        self.errors.append(error)
        self.told.set()


def monitor_thread(page, wait, losses=None, *, thread=None, iteration=-1, abort=nothing, event=nothing):
    rounds = Rounds(0, frozenset({0}), RoundTimeouts(60.0, 60.0))
    if iteration == 0:
        rounds.advance(frozenset({0}))
    changed = SignalSafeCondition()
    return MonitorThread(
        store=Store(wait, event),
        rounds=rounds,
        changed=changed,
        abort=Abort(page, abort, Interrupter(thread or FunctionThread(signal.SIGRTMIN + 3), 1.0), changed),
        losses=losses or Losses(),
    )


@pytest.mark.parametrize("error", [KeyError("unforeseen"), SystemExit(3)])
def test_whatever_ends_the_thread_is_told(page, error):
    def fail():
        raise error

    losses = Losses()
    thread = monitor_thread(page, fail, losses)
    thread.start()
    assert losses.told.wait(5.0)
    thread.stop(nothing)
    assert losses.errors == [error]


def test_a_thread_that_hangs_does_not_block_the_caller(page, monkeypatch, caplog):
    monkeypatch.setattr(module, "ENDS_WITHIN", 0.05)
    free = threading.Event()
    thread = monitor_thread(page, free.wait)
    thread.start()
    with caplog.at_level(logging.WARNING):
        thread.stop(nothing)
    assert "the rank leaves without it" in caplog.text
    free.set()


def test_a_thread_that_connects_to_a_lost_store_is_waited_for(page, caplog):
    """torch would terminate the process if the interpreter exited before the thread has come back from C++."""
    page[ProgressField.STORE_LOST] = 1
    gone = threading.Event()
    thread = monitor_thread(page, lambda: threading.Event().wait(0.2) or gone.set())
    thread.start()
    with caplog.at_level(logging.DEBUG):
        thread.stop(nothing)
    assert gone.is_set()
    assert caplog.text == ""


def test_the_rank_has_heard_of_a_completion_too(page, monkeypatch):
    noticed = []

    async def run_store_actions(round_, actions, store):
        noticed.append(page[ProgressField.NOTICED])
        return (Finish("all have completed"),)

    monkeypatch.setattr(protocol, "run_store_actions", run_store_actions)
    thread = monitor_thread(page, nothing, iteration=0)
    thread.start()
    thread._thread.join(5.0)
    assert noticed == [1]


@pytest.fixture
def function_thread():
    thread = FunctionThread(signal.SIGRTMIN + 3)
    thread.install()
    yield thread
    thread.uninstall()


def test_a_busy_function_is_out_before_the_abort_has_ended(page, function_thread):
    out, stop, interval = [], threading.Event(), sys.getswitchinterval()
    intervals, (busy, becomes_busy) = [], os.pipe()

    def abort():
        intervals.append(sys.getswitchinterval())
        out.append(function_thread.out.wait(5.0))

    thread = monitor_thread(
        page, lambda: (stop.wait(), 1 / 0),
        thread=function_thread, iteration=0, abort=abort, event=lambda: os.read(busy, 1),
    )  # fmt: skip

    def function():
        thread.start()
        os.write(becomes_busy, b".")  # a lock of Python's would be a place where an interruption is put off
        while True:
            pass

    function_thread.arm()
    with pytest.raises(RankShouldRestart):
        function()
    function_thread.armed = False
    function_thread.out.set()
    stop.set()
    thread.stop(nothing)
    os.close(busy)
    os.close(becomes_busy)
    assert out == [True]
    assert intervals[0] < interval
    assert sys.getswitchinterval() == interval
