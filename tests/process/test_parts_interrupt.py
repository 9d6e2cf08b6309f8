"""The interruption from another thread: out of what blocks, out of what swallows, never out of an atomic section."""

from __future__ import annotations

import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from nvrx_core.inprocess.interruption.async_exception import Withdrawn
from nvrx_core.inprocess.interruption.atomic import Atomic
from nvrx_core.inprocess.interruption.interrupt import FunctionThread, Interrupter
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart

Work = Callable[[threading.Event], None]
"""What is interrupted; it sets the event when it is where the interruption shall meet it."""
SOON = 5.0
"""Seconds; what is not interrupted goes on for at least twice as long."""
AT_ONCE, AGAIN = 1.0, 2.0
"""Seconds for the soonest of three interruptions, a single and a repeated one: the machine may stall in one of them."""


@pytest.fixture
def interrupter() -> Iterator[Interrupter]:
    thread = FunctionThread(signal.SIGRTMIN + 3)
    thread.install()
    yield Interrupter(thread, unwind=0.2)
    thread.uninstall()


class Blocking:
    """What the work blocks in where no signal reaches it."""

    def __init__(self, unblock: Callable[[], None]) -> None:
        self._unblock = unblock

    def unblock(self) -> int:
        self._unblock()
        return 1


def interrupted(
    interrupter: Interrupter, work: Work, *, after: float = 0.05, unblock: Callable[[], None] = lambda: None
) -> float:
    """Run the work, interrupt it a moment after it has begun; seconds from the request until it is out."""
    requested: list[float] = []
    begun = threading.Event()

    def drive() -> None:
        begun.wait()
        time.sleep(after)
        requested.append(time.monotonic())
        interrupter.request(lambda: RankShouldRestart("the round ends"))
        interrupter.wait_unmasked()
        interrupter.drive(Blocking(unblock))

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        with pytest.raises(RankShouldRestart):
            _armed(interrupter, work, begun)
        return time.monotonic() - requested[0]
    finally:
        begun.set()
        interrupter.thread.out.set()
        interrupter.thread.free.set()
        thread.join()


def soonest(interrupter: Interrupter, work: Work, unblock: Callable[[], None] = lambda: None) -> float:
    """Interrupt the work three times; the seconds of the fastest one. None takes long."""
    seconds = []
    for _ in range(3):
        interrupter.reset()
        seconds.append(interrupted(interrupter, work, unblock=unblock))
    assert max(seconds) < SOON
    return min(seconds)


def _armed(interrupter: Interrupter, work: Work, begun: threading.Event) -> None:
    try:
        interrupter.thread.arm()
        work(begun)
    finally:
        interrupter.thread.armed = False
        with suppress(Withdrawn):
            interrupter.thread.drop()


def sleep(begun: threading.Event) -> None:
    begun.set()
    time.sleep(30)


def lock(begun: threading.Event) -> None:
    held = threading.Lock()
    with held:
        begun.set()
        held.acquire(timeout=30)


def wait_queue(begun: threading.Event) -> None:
    begun.set()
    queue.Queue[int]().get(timeout=30)


def receive(begun: threading.Event) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        begun.set()
        ours.recv(1)


def compute(begun: threading.Event) -> None:
    begun.set()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pass


def swallow(begun: threading.Event) -> None:
    for _attempt in range(3):
        try:
            begun.set()
            time.sleep(10)
        except BaseException:  # boundary: what must not stop an interruption
            continue
    time.sleep(10)


class Finalized:
    def __del__(self) -> None:
        time.sleep(10)


def finalizer(begun: threading.Event) -> None:
    begun.set()
    Finalized()
    time.sleep(10)


def cleanup(begun: threading.Event) -> None:
    try:
        begun.set()
        time.sleep(10)
    finally:
        time.sleep(10)


@pytest.mark.parametrize("work", [sleep, lock, wait_queue, receive, compute])
def test_whatever_blocks_is_left_at_once(interrupter: Interrupter, work: Work) -> None:
    assert soonest(interrupter, work) < AT_ONCE


@pytest.mark.parametrize("work", [swallow, cleanup])
def test_whatever_swallows_it_is_interrupted_again(interrupter: Interrupter, work: Work) -> None:
    assert soonest(interrupter, work) < AGAIN
    assert interrupter.thread.raised > 1


def test_a_finalizer_that_swallows_it_does_not_stop_it(
    interrupter: Interrupter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's own keeps the exception alive
    assert soonest(interrupter, finalizer) < AGAIN
    assert interrupter.thread.raised > 1


def test_cleanup_is_completed_before_it_is_interrupted(interrupter: Interrupter) -> None:
    done: list[str] = []

    def work(begun: threading.Event) -> None:
        try:
            begun.set()
            time.sleep(30)
        finally:
            time.sleep(0.05)
            done.append("cleaned up")

    interrupter.unwind = 10.0
    interrupted(interrupter, work)
    assert done == ["cleaned up"]
    assert interrupter.thread.raised == 1


def test_an_atomic_section_is_completed(interrupter: Interrupter) -> None:
    done: list[str] = []

    def work(begun: threading.Event) -> None:
        with Atomic(interrupter.thread):
            begun.set()
            while not interrupter.thread.requested:
                time.sleep(0.01)
            time.sleep(0.3)
            done.append("completed")
        time.sleep(30)

    assert 0.3 < interrupted(interrupter, work) < SOON
    assert done == ["completed"]


def test_what_no_signal_reaches_is_unblocked(interrupter: Interrupter) -> None:
    ours, theirs = socket.socketpair()

    def work(begun: threading.Event) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [interrupter.thread.signum])
        try:
            begun.set()
            ours.recv(1)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [interrupter.thread.signum])
        time.sleep(30)

    with ours, theirs:
        assert interrupted(interrupter, work, unblock=theirs.close) < SOON


def test_a_function_outside_of_the_main_thread_is_interrupted_between_two_bytecodes() -> None:
    seconds: list[float] = []

    def run() -> None:
        thread = FunctionThread(signal.SIGRTMIN + 3)
        thread.install()
        seconds.append(interrupted(Interrupter(thread, unwind=0.2), compute))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seconds[0] < SOON
