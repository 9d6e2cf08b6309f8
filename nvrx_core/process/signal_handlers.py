"""The signal handlers of this process, and the exceptions that they raise."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

__all__ = ["raised_by_handler"]


def raised_by_handler(error: BaseException) -> bool:
    """Return whether a signal handler, or what it called, raised the exception."""
    codes = _handler_codes()
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


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
