"""Errors for the user: without the frames of this package, and one that nobody catches printed in one piece.

Of an error that the user can correct, the text says what to write instead; a `raise` without an argument adds no frame
of its own, so that the traceback ends at the user's line.

The interpreter writes the traceback of an exception that nobody catches in pieces, which mix with those of the other
ranks on the same terminal. It is printed short, in one write, once for ranks and attempts that fail alike; an exception
hook of the user's, or of a library, prints as before.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from nvrx_core.errors import InternalError, ParameterError, ParameterTypeError, RestartAbort, RestartError, StoreLost
from nvrx_core.fault.exceptions import set_traceback
from nvrx_core.fault.user_frames import origin, shortened
from nvrx_core.process.bounded import call_all_bounded
from nvrx_core.process.user_packages import user_packages
from nvrx_core.settings.environment import error_file, full_tracebacks, launcher_socket

__all__ = ["plainly", "print_shortened", "trim", "user_traceback"]


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


_VARYING: Final = re.compile(r"initial rank \d+|0x[0-9a-f]+")
"""Parts of a text in which tracebacks that are alike may differ: the rank to blame, the address of an object."""
PRINTED_WITHIN: Final = timedelta(seconds=2)
"""How long another process that prints the same text is waited for."""
_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def print_shortened(error: BaseException, prefix: str = "") -> None:
    """Let the interpreter print `error`, if it remains uncaught, in one piece and without the frames of libraries.

    Where another process of the same launch has printed the same text to the same stream, a line follows instead. The
    launcher is told the exception, whoever prints it.

    Args:
        error: the exception with which this process is about to end.
        prefix: precedes each line.
    """
    before = sys.excepthook.before if isinstance(sys.excepthook, _Uncaught) else sys.excepthook
    plain = before is not sys.__excepthook__ or full_tracebacks()
    sys.excepthook = before if plain and _file_for_launcher() is None else _Uncaught(error, prefix, before, plain=plain)


class _Uncaught:
    """The hook for one exception; it is replaced by the one before when it is called, or when another follows it.

    Args:
        error: the exception.
        prefix: precedes each line.
        before: the hook before, which prints every other exception.
        plain: it prints this one as well.
    """

    def __init__(self, error: BaseException, prefix: str, before: _Hook, *, plain: bool) -> None:
        self._error = id(error)  # a reference would keep alive what the function held
        self._prefix, self._plain, self.before = prefix, plain, before

    def __call__(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        """Print it."""
        sys.excepthook = self.before
        text = self._text(kind, value, trace) if id(value) == self._error and sys.stderr is not None else None
        if text is None:
            self.before(kind, value, trace)
            return
        short = f"{_last(value)}\n(at {origin(trace, user_packages())}, with the same traceback as above)\n"
        with _first(text) as first:
            told = (text if first else short).splitlines(keepends=True)
            print("".join(f"{self._prefix}{line}" for line in told), end="", file=sys.stderr, flush=True)

    def _text(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> str | None:
        """Tell the launcher; return the text to print, None if the hook before prints it."""
        try:
            captured = traceback.TracebackException(kind, value, trace, compact=True)
            _tell_launcher(_last(value), "".join(captured.format()))
            return None if self._plain else shortened(captured, user_packages())
        except Exception:  # boundary: a property of the user's exception
            return None


def _last(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).rstrip()


def _file_for_launcher() -> Path | None:
    return None if launcher_socket() is None else error_file()


def _tell_launcher(last: str, text: str) -> None:
    """Write the exception to the error file, unless there is one: the launcher names it as the cause."""
    if (file := _file_for_launcher()) is None:
        return
    cause = last.partition("\n")[0].partition(". Next: ")[0]
    told = {"message": cause, "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))}}
    with suppress(OSError), file.open("x") as opened:
        json.dump({"message": told}, opened)


@contextmanager
def _first(text: str) -> Iterator[bool]:
    """Return whether no process of this launch has printed the text to the stream; note that this one has, on exit.

    Another one that prints it is waited for: it may be terminated before it has.
    """
    marker = _lock_marker(text)
    try:
        first = marker is None or os.fstat(marker).st_size == 0
        yield first
        if marker is not None and first:
            with suppress(OSError):  # of a full disk
                os.write(marker, b"printed\n")
    finally:
        if marker is not None:
            os.close(marker)


def _lock_marker(text: str) -> int | None:
    """Open and lock the file that says whether the text was printed; None where there can be none."""
    if (file := error_file()) is None:
        return None
    try:
        stream = os.fstat(sys.stderr.fileno())
        alike = f"{stream.st_dev} {stream.st_ino} {_VARYING.sub('', text)}"
        name = hashlib.sha256(alike.encode(errors="replace")).hexdigest()
        marker = os.open(file.parents[2] / f"printed-{name[:32]}", os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
    except (OSError, ValueError, AttributeError):  # no such folder here, or a stream that is no file
        return None
    try:
        lock = functools.partial(fcntl.flock, marker, fcntl.LOCK_EX)
        failed = bool(call_all_bounded({"nvrx-traceback-lock": lock}, PRINTED_WITHIN))
    except RuntimeError:  # no thread is to be had
        failed = True
    if failed:
        os.close(marker)
        return None
    return marker
