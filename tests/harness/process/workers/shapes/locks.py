"""Locks and what is built on them."""

from __future__ import annotations

import queue
import threading
from typing import Any

from tests.harness.process.workers.shapes.shape import Shape, assert_free, work

__all__ = ["SHAPES"]


class WithLock(Shape):
    """`with lock:`."""

    def prepare(self) -> None:
        self.lock = threading.Lock()

    def run(self, call: Any) -> None:
        with self.lock:
            work()

    def check(self) -> None:
        assert_free(self.lock)


class AcquireTry(Shape):
    """The lock is acquired on one line, and released in the `finally` of the next."""

    def prepare(self) -> None:
        self.lock = threading.Lock()

    def run(self, call: Any) -> None:
        self.lock.acquire()
        try:
            work()
        finally:
            self.lock.release()

    def check(self) -> None:
        assert_free(self.lock)


class ReentrantLock(Shape):
    """A lock that its thread takes twice: for that thread it looks free when it is not."""

    def prepare(self) -> None:
        self.lock = threading.RLock()

    def run(self, call: Any) -> None:
        with self.lock:
            work()
            with self.lock:
                work()

    def check(self) -> None:
        assert_free(self.lock)


class Notified(Shape):
    """A condition that another thread notifies."""

    def prepare(self) -> None:
        self.condition, self.over, self.turn = threading.Condition(), False, 0
        self.thread = threading.Thread(target=self.notify, daemon=True)
        self.thread.start()

    def notify(self) -> None:
        while not self.over:
            with self.condition:
                self.turn += 1
                self.condition.notify_all()
                self.condition.wait(0.001)

    def run(self, call: Any) -> None:
        with self.condition:
            turn = self.turn
            self.condition.notify_all()
            self.condition.wait_for(lambda: self.turn != turn, 5)
        assert self.turn != turn, "the other thread has stopped"

    def check(self) -> None:
        assert_free(self.condition)

    def close(self) -> None:
        self.over = True
        self.thread.join()


class EventSet(Shape):
    """An event is waited for until a timer's thread sets it."""

    def run(self, call: Any) -> None:
        self.event = event = threading.Event()
        timer = threading.Timer(0.001, event.set)
        timer.daemon = True
        timer.start()
        assert event.wait(5)
        timer.join()

    def check(self) -> None:
        assert_free(self.event._cond, "the event's condition")
        assert_free(threading._active_limbo_lock, "the lock of threading's own list")  # type: ignore[attr-defined]


class Permits(Shape):
    """A semaphore: each permit that is taken is given back."""

    def prepare(self) -> None:
        self.permits = threading.BoundedSemaphore(3)

    def run(self, call: Any) -> None:
        with self.permits, self.permits:
            work()

    def check(self) -> None:
        assert_free(self.permits._cond, "the semaphore's condition")
        assert self.permits._value == 3, f"{self.permits._value} permits of 3"


class QueueOfTwo(Shape):
    """A `queue.Queue` through which another thread sends everything back."""

    def prepare(self) -> None:
        self.there: queue.Queue[int | None] = queue.Queue(2)
        self.back: queue.Queue[int | None] = queue.Queue(8)
        self.thread = threading.Thread(target=self.echo, daemon=True)
        self.thread.start()

    def echo(self) -> None:
        while (item := self.there.get()) is not None:
            if not self.back.full():
                self.back.put(item)

    def run(self, call: Any) -> None:
        self.there.put(1)
        self.there.put(2)
        self.back.get(timeout=5)

    def check(self) -> None:
        assert_free(self.there.mutex, "the queue's mutex")
        assert_free(self.back.mutex, "the queue's mutex")

    def close(self) -> None:
        self.there.put(None)
        self.thread.join()


class SimpleQueue(Shape):
    """A `queue.SimpleQueue`, which is written in C."""

    def prepare(self) -> None:
        self.queue: queue.SimpleQueue[int] = queue.SimpleQueue()

    def run(self, call: Any) -> None:
        self.queue.put(1)
        work()
        self.queue.get(timeout=5)

    def check(self) -> None:
        while not self.queue.empty():
            self.queue.get_nowait()


SHAPES = (WithLock, AcquireTry, ReentrantLock, Notified, EventSet, Permits, QueueOfTwo, SimpleQueue)
