"""The log of exceptions of the function that the job survived: each with its traceback, once.

Ranks that fail alike, as by a mistake in the script, are one traceback and not one for each rank: the rank that the
round names as the cause logs it, and the cause of the next rounds is not logged again if it is alike, whichever rank
it is of: the line of the restart names it. So the log waits for the round's decision; the event file does not, and has
the traceback with all frames.

The traceback is captured in the main thread, without its source lines. A thread of its own reads these and writes the
text, so that neither a restart nor a watchdog waits for a file; lines that cannot be read in time are left out, and all
of them where the process can start no thread. The end of the call waits for it, for a bounded time: a rank that leaves
after its failure has logged it.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from nvrx_core.events.log import EventLog
from nvrx_core.fault.exceptions import text_of, type_name
from nvrx_core.fault.log_rate import LogRate
from nvrx_core.fault.record import FaultRecord
from nvrx_core.fault.user_frames import origin, raised_at, shortened
from nvrx_core.inprocess.call.user_errors import user_traceback
from nvrx_core.process.bounded import call_all_bounded
from nvrx_core.process.user_packages import user_packages
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.settings.environment import full_tracebacks

__all__ = ["SurvivedErrors"]

log = logging.getLogger("nvrx_core.inprocess")
READ_WITHIN: Final = timedelta(seconds=2)
"""The bound on reading the source lines."""
WRITTEN_WITHIN: Final = READ_WITHIN + timedelta(seconds=1)
"""How long the end of a call waits for a text: for its source lines, and for a handler of the log."""
MAX_FRAMES: Final = 100
"""The innermost frames that are kept."""
_Key = tuple[str, tuple[tuple[str, int | None], ...]]


@dataclass(frozen=True)
class _Failure:
    """An exception that is not logged yet.

    Attributes:
        kind: type and places of its fault record, by which ranks fail alike.
        times: how many of this rank in a row were equal.
        captured: its traceback.
    """

    iteration: int
    kind: tuple[str, str, str]
    times: int
    captured: traceback.TracebackException

    def last_line(self) -> str:
        return "".join(self.captured.format_exception_only()).strip()


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
        self._shorten = not full_tracebacks()
        self._failure: _Failure | None = None
        self._told: tuple[str, str, str] | None = None
        self._writing = list[threading.Thread]()

    def survived(self, error: BaseException, iteration: int) -> None:
        """Note the exception that ended the function in `iteration`; a new one is written to the event file."""
        self._failure = None
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
        captured = _capture(error)
        key = type_name(type(error)), tuple((frame.filename, frame.lineno) for frame in captured.stack)
        self._times = self._times + 1 if key == self._last else 1
        self._last, times = key, self._times
        if times == 1:
            full = _capture(error)

            def write(lines: bool) -> None:
                self._events.write("exception", iteration, traceback=_text(full, lines, shorten=False))

            self._defer(lambda: self._in_thread(write))
        trace = error.__traceback__
        kind = key[0], origin(trace, user_packages()), raised_at(trace)
        self._failure = _Failure(iteration, kind, times, captured)

    def decided(self, cause: FaultRecord | None) -> None:
        """Log the exception, if there is one; a repetition, or the failure of another rank too, is a line, or less.

        Args:
            cause: the fault that the round's decision names as the cause; None if there is no decision.
        """
        failure, self._failure = self._failure, None
        told, self._told = self._told, None if cause is None else (cause.error_type, cause.origin, cause.raised_at)
        if failure is None:
            return
        wanted = self._rate.line(self._last, now=time.monotonic()) is not None
        if failure.kind == self._told and cause is not None and cause.initial_rank != self._initial_rank:
            text, culprit = "initial rank %d failed in iteration %d as initial rank %d did: %s", cause.initial_rank
            self._defer(lambda: log.info(text, self._initial_rank, failure.iteration, culprit, failure.last_line()))
        elif failure.times == 1 and failure.kind != told:
            self._defer(lambda: self._in_thread(lambda lines: self._log(failure, lines)))
        elif wanted:
            text = "initial rank %d fails alike in iteration %d: %s"
            self._defer(lambda: log.info(text, self._initial_rank, failure.iteration, failure.last_line()))

    def close(self) -> None:
        """Wait until all is written, for a bounded time; no work is deferred any more."""
        deadline = time.monotonic() + WRITTEN_WITHIN.total_seconds()
        for thread in self._writing:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _in_thread(self, write: Callable[[bool], None]) -> None:
        """Write in a thread, which may read source lines; without them where no thread is to be had."""
        thread = threading.Thread(target=write, args=(True,), name="nvrx-traceback", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            write(False)
        else:
            self._writing = [*filter(threading.Thread.is_alive, self._writing), thread]

    def _log(self, failure: _Failure, lines: bool) -> None:
        text = _text(failure.captured, lines, shorten=self._shorten)
        told = "the function failed on initial rank %d in iteration %d:\n%s"
        log.error(told, self._initial_rank, failure.iteration, text.rstrip())


def _capture(error: BaseException) -> traceback.TracebackException:
    trace = user_traceback(error.__traceback__)
    return traceback.TracebackException(type(error), error, trace, limit=-MAX_FRAMES, lookup_lines=False, compact=True)


def _text(captured: traceback.TracebackException, lines: bool, *, shorten: bool) -> str:
    """Return the text of an exception, with its source `lines` if these can be read in time."""
    found: list[str] = []

    def read() -> None:
        found.append(shortened(captured, user_packages()) if shorten else "".join(captured.format()))

    if lines:
        with suppress(RuntimeError):  # no thread is to be had
            call_all_bounded({"nvrx-source-lines": read}, READ_WITHIN)
    if found:
        return found[0]
    frames = (f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n' for frame in captured.stack)
    return "".join(["Traceback (most recent call last):\n", *frames, *captured.format_exception_only()])
