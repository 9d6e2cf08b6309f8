"""Waiting for the next line of a thread at which an interruption may land, by a trace function that is set meanwhile.

The signal handler names the frame that has to be reached (`landing.destination`). Only this frame is traced, and, where
nothing around it forbids a landing, each new frame of the user's code; the trace function of the thread does nothing in
all others. A frame that ends, or a generator that is suspended, passes the wait on to its caller. Where other code
traces the thread, a debugger or a coverage tool, nothing is set, and what it sets meanwhile is left as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Set
from types import CodeType, FrameType
from typing import Any, Final

from nvrx_core.inprocess.interruption.landing import destination, handlers_of, may_land_in

__all__ = ["NextLine"]


class NextLine:
    """The wait of one thread for a line. All methods are called in that thread.

    Args:
        reached: called when a frame begins a line, with that frame, and with the exception handlers of that frame that
            were entered before the interruption was deferred: raises the interruption, which ends the wait, cancels
            the wait, or returns to go on.

    Attributes:
        busy: whether the thread runs the signal handler or code of this wait: neither is traced, nor interrupted.
    """

    def __init__(self, reached: Callable[[FrameType, Set[int]], object]) -> None:
        self.busy = False
        self._reached: Final = reached
        self._function: Final = self._enter  # the same object each time, so that it is found again
        self._frame: FrameType | None = None
        self._found: tuple[Any, bool] = None, True  # the frame's f_trace and f_trace_lines
        self._calls = False
        self._catching_code: CodeType | None = None
        self._refused = dict[int, bool]()
        self._within: Set[int] = frozenset()  # the frame's handlers that it ran when the wait began

    @property
    def awaited(self) -> bool:
        """Whether a line is awaited."""
        return self._frame is not None

    def await_from(self, frame: FrameType | None, catching_code: CodeType | None) -> None:
        """Wait for the frame that has to be reached from `frame`; for none if other code traces the thread.

        Args:
            frame: the innermost frame, where the interruption must not land.
            catching_code: the code of the frame that catches it.
        """
        tracer, goal = sys.gettrace(), destination(frame, catching_code)
        if goal is None or tracer not in (None, self._function):
            self.cancel()
            return
        self._catching_code, self._calls = catching_code, goal.calls
        self._watch(goal.frame)
        within = handlers_of(goal.frame)
        if not within <= self._within:
            self._refused.clear()
        self._within = within
        if tracer is None:
            sys.settrace(self._function)

    def cancel(self) -> None:
        """Wait no more: remove the trace function if it is still this one."""
        self._release()
        if sys.gettrace() is self._function:
            sys.settrace(None)

    def _watch(self, frame: FrameType) -> None:
        if frame is not self._frame:
            self._release()
            self._frame, self._found = frame, (frame.f_trace, frame.f_trace_lines)
            frame.f_trace_lines = True
        frame.f_trace = self._event

    def _release(self) -> None:
        frame, self._frame = self._frame, None
        self._refused.clear()
        if frame is not None and frame.f_trace == self._event:  # else a debugger has set its own meanwhile
            frame.f_trace, frame.f_trace_lines = self._found

    def _enter(self, frame: FrameType, event: str, argument: Any) -> None:
        """Trace the thread: a frame begins or goes on."""
        if self._frame is None:  # set again by code that has found it there
            self.cancel()
        elif self._calls and not self.busy and may_land_in(frame):
            self._within = frozenset()
            self._guarded(lambda: self._watch(frame))

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        """Trace the frame that has to be reached."""
        if frame is not self._frame or self.busy:
            return
        if event == "line":
            self._guarded(lambda: self._line(frame))
        elif event == "return":
            self._guarded(lambda: self._left(frame))

    def _guarded(self, act: Callable[[], object]) -> None:
        self.busy = True
        try:
            act()
        except Exception:  # boundary: the wait is given up, firing again remains; no interruption is an `Exception`
            self.cancel()
        finally:
            self.busy = False

    def _line(self, frame: FrameType) -> None:
        if sys.gettrace() is not self._function:  # other code traces the thread by now
            self._release()
        elif frame.f_lasti in self._refused:  # a loop
            self._calls = self._refused[frame.f_lasti]
        else:
            within = self._within
            self._reached(frame, within)
            if frame is self._frame:
                self.await_from(frame, self._catching_code)
            if frame is self._frame:
                self._refused[frame.f_lasti], self._within = self._calls, within

    def _left(self, frame: FrameType) -> None:
        caller = frame.f_back
        if caller is None or caller.f_code is self._catching_code:
            self.cancel()
        else:
            self.await_from(caller, self._catching_code)
