"""Waits between threads that go on although a signal handler raises in the middle of them."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from nvrx_core.process.signal_safe import SignalSafeCondition, SignalSafeEvent


class Raised(BaseException):
    """What the handler raises."""


@pytest.fixture
def storm() -> Iterator[Callable[[float], None]]:
    """Lets the handler raise in this thread every now and then, for some seconds."""
    main, over = threading.get_ident(), threading.Event()

    def handle(*_: object) -> None:
        raise Raised

    def send() -> None:
        while not over.wait(random.random() * 0.0004):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=send)

    def begin(seconds: float) -> None:
        threading.Timer(seconds, over.set).start()
        thread.start()

    yield begin
    while True:
        with suppress(Raised):
            over.set()
            thread.join()
            signal.signal(signal.SIGUSR1, before)
            break


def test_a_wait_ends_with_what_is_waited_for_or_with_its_time() -> None:
    condition, state = SignalSafeCondition(), [0]
    assert not condition.wait_for(lambda: state[0] == 1, 0.01)
    assert not condition.wait_for(lambda: state[0] == 1, -1.0)

    def change() -> None:
        with condition.lock:
            state[0] += 1
        condition.notify_all()

    threads = [threading.Thread(target=change) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert condition.wait_for(lambda: state[0] == 3)
    for thread in threads:
        thread.join()


def test_an_event_is_set_waited_for_and_cleared() -> None:
    event = SignalSafeEvent()
    assert not event.wait(0.0)
    threading.Timer(0.01, event.set).start()
    assert event.wait()
    assert event.is_set()
    event.clear()
    assert not event.wait(0.001)


def test_a_handler_that_raises_leaves_the_lock_free_and_no_other_error(storm: Callable[[float], None]) -> None:
    """Another thread uses the same condition all the while; it is never locked out, and never waits for long."""
    condition, turns, over = SignalSafeCondition(), [0, 0], SignalSafeEvent()

    def other() -> None:
        while not over.is_set():
            with condition.lock:
                turns[1] += 1
            condition.notify_all()

    thread = threading.Thread(target=other)
    thread.start()
    storm(1.0)
    end, raised = time.monotonic() + 1.5, 0
    while time.monotonic() < end:
        try:
            seen = turns[1]
            condition.wait_for(lambda seen=seen: turns[1] > seen)  # type: ignore[misc]
            turns[0] += 1
        except Raised:
            raised += 1
    over.set()
    thread.join(10.0)
    assert not thread.is_alive()
    assert raised
    assert turns[0]
