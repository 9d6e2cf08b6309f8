"""Code that depends on the interpreter: handlers, hooks, callbacks from C, deep stacks."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import weakref
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

from tests.harness.process.workers.shapes.shape import Shape, work

__all__ = ["SHAPES"]

_Compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))


class Alarm(Shape):
    """A timer whose handler runs a thousand times a second."""

    def prepare(self) -> None:
        self.former = signal.signal(signal.SIGALRM, self.ring)

    def ring(self, number: int, frame: FrameType | None) -> None:
        self.entered += 1
        try:
            work()
        finally:
            self.cleaned += 1

    def run(self, call: Any) -> None:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            work(200)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def check(self) -> None:
        super().check()
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), "the timer runs on"
        assert signal.getsignal(signal.SIGALRM) == self.ring

    def close(self) -> None:
        signal.signal(signal.SIGALRM, self.former)


class Traced(Shape):
    """`sys.settrace`, as a debugger or a coverage tool has it."""

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        return self.trace

    def run(self, call: Any) -> None:
        try:
            sys.settrace(self.trace)
            work(60)
        finally:
            sys.settrace(None)

    def check(self) -> None:
        assert sys.gettrace() is None, "still traced"


class CollectorOff(Shape):
    """Cycles while the collector is off."""

    def run(self, call: Any) -> None:
        try:
            gc.disable()
            for _ in range(20):
                cycle: list[Any] = []
                cycle.append(cycle)
                work()
        finally:
            gc.enable()
        gc.collect(0)

    def check(self) -> None:
        assert gc.isenabled(), "the collector is still off"


class Thing:
    """What a weak reference refers to."""


class Finalizer(Shape):
    """`weakref.finalize`."""

    def prepare(self) -> None:
        self.numbers, self.known, self.gone = count(), set[int](), list[int]()

    def run(self, call: Any) -> None:
        thing, number = Thing(), next(self.numbers)
        weakref.finalize(thing, self.gone.append, number)
        self.known.add(number)
        work()

    def check(self) -> None:
        assert len(set(self.gone)) == len(self.gone), "a finalizer ran twice"
        assert self.known <= set(self.gone), "a finalizer did not run"


class WeakCallback(Shape):
    """The callback of a weak reference, out of which no exception comes."""

    def prepare(self) -> None:
        self.things: weakref.WeakValueDictionary[int, Thing] = weakref.WeakValueDictionary()
        self.cache: weakref.WeakSet[Thing] = weakref.WeakSet()

    def run(self, call: Any) -> None:
        for number in range(10):
            self.things[number] = thing = Thing()
            self.cache.add(thing)
            work(5)

    def check(self) -> None:
        assert len(list(self.things)) <= 1
        assert len(list(self.cache)) <= 1


class CallbackFromC(Shape):
    """A function that C calls; what it raises is printed and forgotten."""

    def prepare(self) -> None:
        self.compare = _Compare(lambda one, other: one[0] - other[0])

    def run(self, call: Any) -> None:
        numbers = (ctypes.c_int * 40)(*(37 * number % 40 for number in range(40)))
        ctypes.CDLL(None).qsort(numbers, len(numbers), ctypes.sizeof(ctypes.c_int), self.compare)
        work()


class DeepRecursion(Shape):
    """A cleanup at each of two hundred levels."""

    def descend(self, levels: int) -> None:
        self.entered += 1
        try:
            if levels:
                self.descend(levels - 1)
        finally:
            self.cleaned += 1

    def run(self, call: Any) -> None:
        self.descend(200)


class RecursionLimit(Shape):
    """Recursion to the limit, where a handler has no stack left."""

    def descend(self) -> None:
        self.descend()

    def run(self, call: Any) -> None:
        try:
            self.descend()
        except RecursionError:
            work()


SHAPES = (
    Alarm, Traced, CollectorOff, Finalizer, WeakCallback, CallbackFromC, DeepRecursion, RecursionLimit,
)  # fmt: skip
