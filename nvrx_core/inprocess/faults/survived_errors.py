"""The log of exceptions of the function that the job survived: each with its traceback, once.

The traceback is captured in the main thread, without its source lines. A thread of its own reads these and writes the
text, so that neither a restart nor a watchdog waits for a file; lines that cannot be read in time are left out, and all
of them where the process can start no thread.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from nvrx_core.events.log import EventLog
from nvrx_core.fault.exceptions import text_of, type_name
from nvrx_core.fault.log_rate import LogRate
from nvrx_core.inprocess.faults.user_errors import user_traceback
from nvrx_core.process.bounded import call_all_bounded
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["SurvivedErrors"]

log = logging.getLogger("nvrx_core.inprocess")
READ_WITHIN: Final = timedelta(seconds=2)
"""The bound on reading the source lines."""
MAX_FRAMES: Final = 100
"""The innermost frames that are kept."""
_Key = tuple[str, tuple[tuple[str, int | None], ...]]


class SurvivedErrors:
    """Logs the exceptions.

    Args:
        initial_rank: the rank.
        events: the event file, to which the tracebacks are written as well.
        defer: runs work that waits for no file soon, in a thread that no restart waits for.
    """

    def __init__(
        self, initial_rank: InitialRank, events: EventLog, defer: Callable[[Callable[[], None]], None]
    ) -> None:
        self._initial_rank, self._events, self._defer = initial_rank, events, defer
        self._last: _Key | None = None
        self._times, self._rate = 0, LogRate()

    def survived(self, error: BaseException, iteration: int) -> None:
        """Log the exception that ended the function in `iteration`; a repetition is a line, or less."""
        with suppress(MemoryError):  # which may be what the function has failed with
            try:
                self._note(error, iteration)
            except MemoryError:
                raise
            except Exception:  # boundary: a property of the user's exception
                told = "the function failed on initial rank %d in iteration %d: %s; its traceback cannot be shown"
                text = text_of(error)
                self._defer(lambda: log.error(told, self._initial_rank, iteration, text))

    def _note(self, error: BaseException, iteration: int) -> None:
        captured = traceback.TracebackException(
            type(error), error, user_traceback(error.__traceback__), limit=-MAX_FRAMES, lookup_lines=False, compact=True
        )
        key = type_name(type(error)), tuple((frame.filename, frame.lineno) for frame in captured.stack)
        self._times = self._times + 1 if key == self._last else 1
        self._last, times = key, self._times
        wanted = self._rate.line(key, now=time.monotonic()) is not None
        if times > 1 and wanted:
            last = "".join(captured.format_exception_only()).strip()
            told = "initial rank %d fails alike, %d times in a row: %s"
            self._defer(lambda: log.error(told, self._initial_rank, times, last))
        elif times == 1:
            self._defer(lambda: self._start(captured, iteration))

    def _start(self, captured: traceback.TracebackException, iteration: int) -> None:
        write = functools.partial(self._write, iteration, captured)
        try:
            threading.Thread(target=write, args=(True,), name="nvrx-traceback", daemon=True).start()
        except RuntimeError:  # no thread is to be had
            write(False)

    def _write(self, iteration: int, captured: traceback.TracebackException, lines: bool) -> None:
        text = (_with_lines(captured) if lines else "") or _without_lines(captured)
        log.error("the function failed on initial rank %d in iteration %d:\n%s", self._initial_rank, iteration, text)
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
