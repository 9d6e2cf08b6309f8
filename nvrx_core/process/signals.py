"""Signals: what one is called, which a scheduler sends, and which exceptions their handlers have raised."""

from __future__ import annotations

import inspect
import signal
import traceback
from types import FrameType
from typing import Final

__all__ = ["SENT_TO_ALL", "ignore_sent_to_all", "raised_by_handler", "signal_name"]

SENT_TO_ALL: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a scheduler or a terminal sends to all processes of a job, to warn or to stop it."""


def signal_name(number: int) -> str:
    """Return the name of a signal, as SIGKILL or SIGRTMIN+8, of which `signal.Signals` names two; never an error."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"signal {number}"


def ignore_sent_to_all() -> None:
    """Ignore them, in the main thread of a process that lasts as long as the one that it serves."""
    for number in SENT_TO_ALL:
        signal.signal(number, signal.SIG_IGN)


def raised_by_handler(error: BaseException) -> bool:
    """Return whether a signal handler, or what it called, raised the exception: one that the interpreter has called.

    The interpreter gives a handler the frame that it interrupts, which is also the one that the handler returns to.
    Code that calls a handler for a cleanup has no such frame to give. Whether the handler is still installed says
    nothing: many replace themselves before they exit.
    """
    return any(_was_given_its_caller(frame) for frame, _ in traceback.walk_tb(error.__traceback__))


def _was_given_its_caller(function: FrameType) -> bool:
    """Return whether the frame that called a function is one of the function's arguments."""
    code, caller = function.f_code, function.f_back
    has_more = bool(code.co_flags & inspect.CO_VARARGS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + has_more]
    given = [value for name, value in function.f_locals.items() if name in names]
    rest = (each for value in given if isinstance(value, tuple) for each in value)
    return caller is not None and any(each is caller for each in (*given, *rest))
