"""The signal handlers of this process, and the exceptions that they raise."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

__all__ = ["raised_by_handler"]


def raised_by_handler(error: BaseException) -> bool:
    """Return whether a signal handler, or what it called, raised the exception: one that the interpreter has called."""
    codes = _handler_codes()
    handlers = (frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code in codes)
    return any(_is_given_a_frame(each) for each in handlers)


def _is_given_a_frame(handler: FrameType) -> bool:
    """Return whether it was called with the interrupted frame; code that calls it for a cleanup has none to give."""
    values = handler.f_locals.values()
    rest = (each for value in values if isinstance(value, tuple) for each in value)
    return any(isinstance(each, FrameType) for each in (*values, *rest))


def _handler_codes() -> frozenset[CodeType]:
    handlers = (signal.getsignal(signum) for signum in signal.valid_signals())
    codes = (_code_of(handler) for handler in handlers if callable(handler))
    return frozenset(code for code in codes if code is not None)


def _code_of(handler: Callable[..., Any]) -> CodeType | None:
    """Return the code of a function, a method, a `functools.partial`, or an object with `__call__`."""
    for function in (handler, getattr(handler, "func", None), type(handler).__call__):
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
