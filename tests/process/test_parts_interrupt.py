"""The interruption from another thread: out of what blocks, out of what swallows, never out of an atomic section."""

from __future__ import annotations

import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from nvrx_core.inprocess.interruption.atomic import Atomic
from nvrx_core.inprocess.interruption.interrupt import Interrupt, RankShouldRestart

Work = Callable[[Interrupt], None]


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    made = Interrupt(signal.SIGRTMIN + 3, unwind=0.2)
    made.install()
    yield made
    made.uninstall()


def interrupted(
    interrupt: Interrupt, work: Work, *, after: float = 0.05, unblock: Callable[[], None] = lambda: None
) -> float:
    """Run the work, interrupt it after a while; seconds from the request until it is out."""
    requested: list[float] = []

    def drive() -> None:
        time.sleep(after)
        requested.append(time.monotonic())
        interrupt.request(lambda: RankShouldRestart("the round ends"))
        interrupt.wait_unmasked()
        interrupt.drive(unblock)

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        with pytest.raises(RankShouldRestart):
            _armed(interrupt, work)
        return time.monotonic() - requested[0]
    finally:
        interrupt.out.set()
        interrupt.free.set()
        thread.join()


def _armed(interrupt: Interrupt, work: Work) -> None:
    try:
        interrupt.arm()
        work(interrupt)
    finally:
        interrupt.armed = False
        interrupt.drop()


def sleep(_: Interrupt) -> None:
    time.sleep(30)


def lock(_: Interrupt) -> None:
    held = threading.Lock()
    with held:
        held.acquire(timeout=30)


def wait_queue(_: Interrupt) -> None:
    queue.Queue[int]().get(timeout=30)


def receive(_: Interrupt) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def compute(_: Interrupt) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pass


def swallow(_: Interrupt) -> None:
    for _attempt in range(3):
        try:
            time.sleep(10)
        except BaseException:  # boundary: what must not stop an interruption
            continue
    time.sleep(10)


class Finalized:
    def __del__(self) -> None:
        time.sleep(10)


def finalizer(_: Interrupt) -> None:
    Finalized()
    time.sleep(10)


def cleanup(_: Interrupt) -> None:
    try:
        time.sleep(10)
    finally:
        time.sleep(10)


@pytest.mark.parametrize("work", [sleep, lock, wait_queue, receive, compute])
def test_whatever_blocks_is_left_at_once(interrupt: Interrupt, work: Work) -> None:
    assert interrupted(interrupt, work) < 1.0


@pytest.mark.parametrize("work", [swallow, cleanup])
def test_whatever_swallows_it_is_interrupted_again(interrupt: Interrupt, work: Work) -> None:
    assert interrupted(interrupt, work) < 2.0
    assert interrupt.raised > 1


def test_a_finalizer_that_swallows_it_does_not_stop_it(interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's own keeps the exception alive
    assert interrupted(interrupt, finalizer) < 2.0
    assert interrupt.raised > 1


def test_cleanup_is_completed_before_it_is_interrupted(interrupt: Interrupt) -> None:
    done: list[str] = []

    def work(_: Interrupt) -> None:
        try:
            time.sleep(30)
        finally:
            time.sleep(0.05)
            done.append("cleaned up")

    interrupted(interrupt, work)
    assert done == ["cleaned up"]
    assert interrupt.raised == 1


def test_an_atomic_section_is_completed(interrupt: Interrupt) -> None:
    done: list[str] = []

    def work(_: Interrupt) -> None:
        with Atomic(interrupt):
            time.sleep(0.3)
            done.append("completed")
        time.sleep(30)

    assert 0.2 < interrupted(interrupt, work) < 1.5
    assert done == ["completed"]


def test_what_no_signal_reaches_is_unblocked(interrupt: Interrupt) -> None:
    ours, theirs = socket.socketpair()

    def work(_: Interrupt) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [interrupt.signum])
        try:
            ours.recv(1)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [interrupt.signum])
        time.sleep(30)

    with ours, theirs:
        assert interrupted(interrupt, work, unblock=theirs.close) < 1.0


def test_a_function_outside_of_the_main_thread_is_interrupted_between_two_bytecodes() -> None:
    seconds: list[float] = []

    def run() -> None:
        interrupt = Interrupt(signal.SIGRTMIN + 3, unwind=0.2)
        interrupt.install()
        seconds.append(interrupted(interrupt, compute))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seconds[0] < 2.0
