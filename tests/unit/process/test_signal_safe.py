"""Waits between threads that go on although a signal handler raises in the middle of them."""

from __future__ import annotations

import subprocess
import sys
import threading

from nvrx_core.process.signal_safe import SignalSafeCondition, SignalSafeEvent

STORM = """
import faulthandler, random, signal, threading, time
from nvrx_core.process.signal_safe import SignalSafeCondition, SignalSafeEvent

faulthandler.dump_traceback_later(100.0, exit=True)

class Raised(BaseException):
    pass

def handle(*_):
    if armed and not calm:
        armed.clear()
        raise Raised

main, condition, turns, over, calm = threading.get_ident(), SignalSafeCondition(), [0, 0], SignalSafeEvent(), []
armed, raised = [], 0

def other():
    while not over.is_set():
        with condition.lock:
            turns[1] += 1
        condition.notify_all()

def storm():
    for _ in range(1000):
        time.sleep(random.random() * 0.0004)
        signal.pthread_kill(main, signal.SIGUSR1)
    calm.append(True)

signal.signal(signal.SIGUSR1, handle)
threads = [threading.Thread(target=each) for each in (other, storm)]
for thread in threads:
    thread.start()
while True:
    try:
        armed.append(True)
        while not calm:
            seen = turns[1]
            condition.wait_for(lambda: turns[1] > seen)
            turns[0] += 1
        break
    except Raised:
        raised += 1
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
over.set()
for thread in threads:
    thread.join(20.0)
assert not threads[0].is_alive()
assert raised and turns[0]
"""


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


def test_a_handler_that_raises_leaves_the_lock_free_and_no_other_error() -> None:
    """Another thread uses the same condition all the while; it is never locked out, and never waits for long.

    In a process of its own: the locks of a coverage tool do not stand such a handler.
    """
    subprocess.run([sys.executable, "-c", STORM], check=True)
