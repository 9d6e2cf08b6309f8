"""The log of exceptions that the function failed with and the job survived: each with its traceback, once.

The traceback is captured in the main thread, without its source lines. A thread of its own reads these and writes the
text, so that neither a restart nor a watchdog waits for a file; lines that cannot be read in time are left out, and all
of them where the process can start no thread.
"""

from __future__ import annotations

import functools
import logging
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final

from nvrx_core.events.log import EventLog
from nvrx_core.process.bounded import call_all_bounded

__all__ = ["SurvivedErrors", "user_traceback"]

log = logging.getLogger("nvrx_core.inprocess")
PACKAGE: Final = str(Path(__file__).parents[2]) + "/"
READ_WITHIN: Final = timedelta(seconds=2)
"""The bound on reading the source lines."""
MAX_FRAMES: Final = 100
"""The innermost frames that are kept."""
_Key = tuple[type[BaseException], tuple[tuple[str, int | None], ...]]


def user_traceback(trace: TracebackType | None) -> TracebackType | None:
    """Strip the frames of this package that lead to the user's function; all of them remain where there is no other."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename.startswith(PACKAGE):
        found = found.tb_next
    return found or trace


class SurvivedErrors:
    """Logs them.

    Args:
        initial_rank: the rank.
        events: where the tracebacks are written as well.
        defer: runs work that waits for no file soon, in a thread that no restart waits for.
    """

    def __init__(self, initial_rank: int, events: EventLog, defer: Callable[[Callable[[], None]], None]) -> None:
        self._initial_rank, self._events, self._defer = initial_rank, events, defer
        self._last: _Key | None = None
        self._times = 0

    def survived(self, error: BaseException, iteration: int) -> None:
        """Log the exception that ended the function in `iteration`; a repetition of the last one is a single line."""
        with suppress(MemoryError):  # which may be what the function has failed with
            self._note(error, iteration)

    def _note(self, error: BaseException, iteration: int) -> None:
        captured = traceback.TracebackException(
            type(error), error, user_traceback(error.__traceback__), limit=-MAX_FRAMES, lookup_lines=False, compact=True
        )
        key = type(error), tuple((frame.filename, frame.lineno) for frame in captured.stack)
        self._times = self._times + 1 if key == self._last else 1
        self._last, times = key, self._times
        if times > 1:
            last = "".join(captured.format_exception_only()).strip()
            told = "initial rank %d fails alike, %d times in a row: %s"
            self._defer(lambda: log.error(told, self._initial_rank, times, last))
        else:
            self._defer(lambda: self._start(captured, iteration))

    def _start(self, captured: traceback.TracebackException, iteration: int) -> None:
        write = functools.partial(self._write, iteration, captured)
        try:
            threading.Thread(target=write, args=(True,), name="nvrx-traceback", daemon=True).start()
        except RuntimeError:  # no thread is to be had
            write(False)

    def _write(self, iteration: int, captured: traceback.TracebackException, lines: bool) -> None:
        text = (_with_lines(captured) if lines else "") or _without_lines(captured)
        log.error("the function fails on initial rank %d in iteration %d:\n%s", self._initial_rank, iteration, text)
        self._events.write("exception", iteration, traceback=text)


def _with_lines(captured: traceback.TracebackException) -> str:
    """The text with its source lines; "" when they cannot be read in time."""
    found: list[str] = []
    with suppress(RuntimeError):  # no thread is to be had
        call_all_bounded({"nvrx-source-lines": lambda: found.append("".join(captured.format()))}, READ_WITHIN)
    return found[0] if found else ""


def _without_lines(captured: traceback.TracebackException) -> str:
    frames = (f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n' for frame in captured.stack)
    return "".join(["Traceback (most recent call last):\n", *frames, *captured.format_exception_only()])
