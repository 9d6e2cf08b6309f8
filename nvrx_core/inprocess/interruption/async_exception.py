"""Interruption of a function that does not run in the main thread, where no signal handler runs.

`PyThreadState_SetAsyncExc` lets the interpreter raise an exception in that thread as soon as it continues. The
exception must not be raised after the function has ended, inside an atomic section, a second time while the first one
unwinds, or where it would break an invariant (`landing`). Therefore `set_if` and the code before `drop` read the
conditions and act on them without a call in between: the interpreter switches threads, and raises, only at calls and at
the ends of loops. A lock would not help: the exception may be raised in the function's thread between the acquisition
of the lock and the `try` behind it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from nvrx_core.inprocess.protocol.outcome import RankShouldRestart

__all__ = ["AsyncException", "Landings", "Withdrawn"]


class Withdrawn(BaseException):
    """Raised in the place of an exception that `AsyncException.drop` withdraws."""


class Landings(Protocol):
    """The thread that is interrupted: what `set_if` reads of it, and what an exception that it raises writes.

    Attributes:
        armed: whether the thread is in the function.
        depth: the nesting depth of its atomic sections.
        raised: how many exceptions were raised.
        error: returns the last one of them, while it exists.
    """

    armed: bool
    depth: int
    raised: int
    error: Callable[[], BaseException | None]


class AsyncException:
    """An asynchronous exception for one thread.

    Args:
        ident: the thread.
        landings: updated for each raised exception, before any handler runs.

    Attributes:
        drop: withdraws an exception that was set and not raised; raises `Withdrawn`. The thread itself calls it once
            `armed` is false: no further exception is set then, and none can be raised before the call, because `drop`
            is not a Python function. If it set nothing instead, the interpreter would look for an exception at each
            call from then on, and CPython 3.11 would stay at the begin of a function that is traced or profiled.
    """

    def __init__(self, ident: int, landings: Landings) -> None:
        self.ident, self._landings = ident, landings
        set_ = functools.partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.c_ulong(ident))
        self._set: Callable[[], Any] = functools.partial(set_, ctypes.py_object(_raised_in(landings)))
        self.drop: Callable[[], Any] = functools.partial(set_, ctypes.py_object(Withdrawn))

    def set_if(self, raised: int, frame: FrameType | None, at: int) -> bool:
        """Set the exception if the thread may still be interrupted and none was raised since the decision.

        Args:
            raised: the number of raised exceptions at the decision.
            frame: the innermost frame in which the thread must still be; None for any.
            at: the instruction at which it must be.

        Returns:
            False if the thread has moved on.
        """
        landings, set_, ident = self._landings, self._set, self.ident
        for frames in iter(sys._current_frames, None):  # read the frames without a call
            if frame is not None and (frames[ident] is not frame or frame.f_lasti != at):
                break
            if landings.armed and not landings.depth and landings.raised == raised:
                set_()
            return True
        return False


def _raised_in(landings: Landings) -> type[RankShouldRestart]:
    """Return an exception class whose instances, created by the interpreter in that thread, update `landings`."""

    class Raised(RankShouldRestart):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            reference: weakref.ref[BaseException] = weakref.ref(self)
            landings.error, landings.raised = reference, landings.raised + 1  # last: then a handler runs

        def __reduce__(self) -> tuple[type[RankShouldRestart], tuple[object, ...]]:
            return RankShouldRestart, self.args

    Raised.__name__, Raised.__qualname__ = RankShouldRestart.__name__, RankShouldRestart.__qualname__
    Raised.__module__ = RankShouldRestart.__module__
    return Raised
