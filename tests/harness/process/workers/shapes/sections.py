"""Atomic sections, and waiting in the simplest way."""

from __future__ import annotations

import sys
import time
from typing import Any

from tests.harness.process.workers.shapes.shape import Shape, work

__all__ = ["SHAPES"]


class AtomicLoop(Shape):
    """A section in each turn of a loop."""

    def run(self, call: Any) -> None:
        with call.atomic():
            self.entered += 1
            work()
            with call.atomic():
                work()
            self.cleaned += 1
        work()


class AtomicCleanup(Shape):
    """A save in a section in a `finally`: when the function is being left, it must run."""

    def run(self, call: Any) -> None:
        try:
            work()
        finally:
            leaving = sys.exc_info()[0] is not None
            self.entered += leaving
            with call.atomic():
                work()
                self.cleaned += leaving


class AtomicLock(Shape):
    """`atomic_lock`, as code that wants a lock takes it."""

    def run(self, call: Any) -> None:
        lock = call.atomic_lock
        with lock:
            self.entered += 1
            work()
            self.cleaned += 1


class Asleep(Shape):
    """Naps in a loop."""

    def run(self, call: Any) -> None:
        time.sleep(0.002)


SHAPES = (AtomicLoop, AtomicCleanup, AtomicLock, Asleep)
