"""Interrupting a function that runs in another thread than the main one, where no signal handler runs.

`PyThreadState_SetAsyncExc` has the interpreter raise an exception as soon as that thread goes on. It must not be raised
when the function has ended, inside an atomic section, a second time while the first unwinds, or where it would break
something (`landing`). So what decides is read and acted upon without a call in between, in `set_if` and before `drop`:
the interpreter changes threads, and raises, at calls and at the ends of loops only. A lock would not do: the exception
may be raised in the function's thread between the lock's acquisition and the `try` behind it.
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

__all__ = ["AsyncException", "Landings"]


class Landings(Protocol):
    """What the thread and those that interrupt it share.

    Attributes:
        armed: the thread is in the function.
        depth: of its atomic sections.
        raised: how many exceptions were raised.
    """

    armed: bool
    depth: int
    raised: int
    _reference: weakref.ref[BaseException] | None


class AsyncException:
    """The exception that is raised in one thread.

    Args:
        ident: the thread.
        landings: told of each exception that is raised, before any handler runs.

    Attributes:
        drop: takes back what was set and has not been raised. For the thread itself, once `armed` is false: then
            nothing is set any more, and nothing can be raised before `drop` is called, as it is no Python function.
    """

    def __init__(self, ident: int, landings: Landings) -> None:
        self.ident, self._landings = ident, landings
        set_ = functools.partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.c_ulong(ident))
        self._set: Callable[[], Any] = functools.partial(set_, ctypes.py_object(_raised_in(landings)))
        self.drop: Callable[[], Any] = functools.partial(set_, None)

    def set_if(self, raised: int, frame: FrameType | None, at: int) -> bool:
        """Have it raised, if the thread may still be interrupted, and nothing was raised since `raised` were.

        Args:
            raised: how many were raised when that was decided.
            frame: the innermost frame that the thread must still be in; None: any.
            at: the instruction at which it must be.

        Returns:
            False if the thread is somewhere else.
        """
        landings, set_, ident = self._landings, self._set, self.ident
        for frames in iter(sys._current_frames, None):  # a look that is no call
            if frame is not None and (frames[ident] is not frame or frame.f_lasti != at):
                break
            if landings.armed and not landings.depth and landings.raised == raised:
                set_()
            return True
        return False


def _raised_in(landings: Landings) -> type[RankShouldRestart]:
    """The interpreter makes the instance itself, in that thread, before the first handler of the exception runs."""

    class Raised(RankShouldRestart):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            reference: weakref.ref[BaseException] = weakref.ref(self)
            landings._reference, landings.raised = reference, landings.raised + 1  # the last: then the handler runs

        def __reduce__(self) -> tuple[type[RankShouldRestart], tuple[object, ...]]:
            return RankShouldRestart, self.args

    Raised.__name__, Raised.__qualname__ = RankShouldRestart.__name__, RankShouldRestart.__qualname__
    Raised.__module__ = RankShouldRestart.__module__
    return Raised
