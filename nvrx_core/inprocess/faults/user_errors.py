"""Errors that the user can correct, without the frames of this package: the text says what to write instead.

A `raise` without an argument adds no frame of its own, so that the traceback ends at the user's line.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from nvrx_core.errors import InternalError, ParameterError, ParameterTypeError, RestartAbort, RestartError, StoreLost
from nvrx_core.fault.exceptions import set_traceback

__all__ = ["plainly", "trim", "user_traceback"]

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
PACKAGE: Final = str(Path(__file__).parents[2]) + "/"
_EXPLAINED: Final = (ParameterError, ParameterTypeError, RestartAbort, RestartError, StoreLost)


def user_traceback(trace: TracebackType | None) -> TracebackType | None:
    """Strip the frames of this package that lead to the user's function; all of them remain where there is no other."""
    return _after_own(trace) or trace


def trim(error: BaseException, *, started: bool) -> None:
    """Strip the frames of this package from an error for the user.

    Args:
        error: what a call of a wrapped function ends with.
        started: the call was begun; before that, every error is about what the user has written.
    """
    explained = not started or (isinstance(error, _EXPLAINED) and not isinstance(error, InternalError))
    set_traceback(error, (_after_own if explained else user_traceback)(error.__traceback__))


def plainly(check: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Strip all frames from the errors of a function that checks what the user has written."""

    @functools.wraps(check)
    def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return check(*args, **kwargs)
        except (TypeError, ValueError, RestartAbort) as error:
            error.__traceback__ = None
            raise

    return checked


def _after_own(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_own(file: str) -> bool:
    return file.startswith(PACKAGE) or file == contextlib.__file__
