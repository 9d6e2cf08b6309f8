"""This rank's own faults: made from exceptions, written to the event file and logged; the flow announces them.

The exception is the user's: its `__str__` may raise. The record is created before the fault is announced, so this must
not read a source file, which may be on a file system that no longer responds.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final
from weakref import WeakSet

from nvrx_core.events.log import EventLog, boot_id
from nvrx_core.fault.exceptions import exit_code, related, set_traceback, text_of, type_name
from nvrx_core.fault.interruption import Interruption
from nvrx_core.fault.log_rate import LogRate
from nvrx_core.fault.record import LATE_COMPLETION, OUT_OF_MEMORY, FaultRecord
from nvrx_core.fault.user_frames import origin, raised_at, shortened
from nvrx_core.flow import operation
from nvrx_core.inprocess.call.user_errors import user_traceback
from nvrx_core.inprocess.coordination.control_store import RoundOperations
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.inprocess.state import State
from nvrx_core.process import garbage
from nvrx_core.process.bounded import call_all_bounded
from nvrx_core.process.garbage import postpone_collection, watch_frames
from nvrx_core.process.user_packages import user_packages
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.settings.environment import full_tracebacks

__all__ = ["FaultMaker", "OwnFaults", "SurvivedErrors", "ThreadFaults", "clear_frames", "of_function", "release_frames"]

log = logging.getLogger("nvrx_core.inprocess")
READ_WITHIN: Final = timedelta(seconds=2)
"""The bound on reading the source lines."""
WRITTEN_WITHIN: Final = READ_WITHIN + timedelta(seconds=1)
"""How long the end of a call waits for a text: for its source lines, and for a handler of the log."""
MAX_FRAMES: Final = 100
"""The innermost frames that are kept."""


class FaultMaker:
    """Creates the fault records of one rank.

    Args:
        initial_rank: the rank.
    """

    def __init__(self, initial_rank: InitialRank) -> None:
        self.initial_rank = initial_rank
        self._host, self._boot_id = socket.gethostname(), boot_id()

    def of(self, error: BaseException, rank: int, occurred: float) -> FaultRecord:
        """Return the fault record of `error`."""
        kind = Interruption.EXCEPTION if isinstance(error, Exception) else Interruption.BASE_EXCEPTION
        name = type_name(type(error))
        fault = self._fault(kind, text_of(error), name, rank=rank, occurred=occurred)
        trace = error.__traceback__
        fault = replace(
            fault, origin=origin(trace, user_packages()), raised_at=raised_at(trace), exit_code=exit_code(error)
        )
        return replace(fault, category=OUT_OF_MEMORY) if _is_out_of_memory(error) else fault

    def late_completion(self, reason: str, rank: int, now: float) -> FaultRecord:
        """Return the fault record for ranks that have not completed in time."""
        return self._fault(Interruption.EXCEPTION, reason, LATE_COMPLETION, rank=rank, occurred=now)

    def _fault(self, kind: Interruption, message: str, error_type: str, *, rank: int, occurred: float) -> FaultRecord:
        return FaultRecord(
            initial_rank=self.initial_rank,
            rank=rank,
            interruption=kind.name,
            message=message,
            error_type=error_type,
            occurred=occurred,
            announced=time.monotonic(),
            wall=time.time(),
            boot_id=self._boot_id,
            host=self._host,
            pid=os.getpid(),
        )

    def on_my_clock(self, fault: FaultRecord) -> tuple[float, float]:
        """Return when the fault occurred and was announced, in monotonic seconds of this host."""
        if fault.boot_id == self._boot_id:
            return fault.occurred, fault.announced
        announced = time.monotonic() - (time.time() - fault.wall)
        return announced - (fault.announced - fault.occurred), announced


def _is_out_of_memory(error: BaseException) -> bool:
    """Python's, the kernel's, torch's of the GPU, known by its name, or of the CPU, known by its text."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    of_the_gpu = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    return of_the_gpu or "can't allocate memory" in text_of(error)


def of_function(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error that ended the function, and what is chained to it, but not what the function's caller handles.

    Called in the main thread, outside of every `except` of this package.
    """
    return related(error, sys.exception())


def clear_frames(error: BaseException | None) -> None:
    """Clear the locals of all frames that the error and its causes hold: they keep process groups alive."""
    for each in of_function(error):
        watch_frames(each.__traceback__)
        traceback.clear_frames(each.__traceback__)


def release_frames(error: BaseException | None) -> None:
    """Release the frames as well: that of a module keeps all of the module's names, and cannot be cleared."""
    for each in of_function(error):
        traceback.clear_frames(each.__traceback__)
        set_traceback(each, None)


class OwnFaults:
    """Creates, announces and logs the faults of this rank.

    Args:
        maker: creates the records.
        state: the state of this rank.
        events: the event file.
        rounds: announce faults of the user's threads; the main thread's flow announces all others.
        survived: logs the exceptions of the function, once their round is decided.
    """

    def __init__(
        self,
        maker: FaultMaker,
        state: State,
        events: EventLog,
        *,
        rounds: RoundOperations,
        survived: SurvivedErrors,
    ) -> None:
        self._maker, self._state, self._events, self._rounds, self._survived = maker, state, events, rounds, survived

    @operation
    def describe_fault(self, ended: IterationResult) -> FaultRecord:
        """Return the fault record of the error that has ended the iteration."""
        assert ended.error is not None
        return replace(self._maker.of(ended.error, self._state.rank, ended.occurred), behind_step=ended.behind_step)

    @operation
    def describe_late(self, reason: str) -> FaultRecord:
        """Return the fault record for ranks that have not completed in time."""
        return self._maker.late_completion(reason, self._state.rank, time.monotonic())

    @operation
    def record_fault(self, fault: FaultRecord) -> None:
        """Write a fault to the event file that was announced: the others do not wait for a file."""
        self._record(fault)

    @operation
    def release_iteration(self, ended: IterationResult, *, keep_trace: bool) -> None:
        """Release the result of the iteration and the locals of its error's frames; note a failure for the log."""
        ended.result = None
        if ended.outcome is Outcome.FAILED and ended.error is not None:
            self._survived.note(ended.error, self._state.iteration)
        clear_frames(ended.error)
        postpone_collection(of_function(ended.error) if keep_trace else ())
        if not keep_trace:
            release_frames(ended.error)

    @operation
    def report_failure(self, cause: FaultRecord | None) -> None:
        """Log the failure of this rank."""
        self._survived.log_noted(cause)

    @operation
    def survive(self, error: BaseException | None, cause: FaultRecord | None) -> None:
        """The rank goes on: log its failure, if it had one, and release the frames that it refers to."""
        self._survived.log_noted(cause)
        release_frames(error)

    @operation
    def collect_garbage(self) -> None:
        """Collect garbage while this rank waits for the others' arrivals."""
        garbage.collect_garbage()

    @operation
    def collect_postponed(self) -> None:
        """Collect the garbage that the failure has referred to, if any: nothing refers to the failure any more."""
        garbage.collect_postponed()

    def thread_failed(self, error: BaseException, iteration: int) -> None:
        """Announce that a user's thread has ended with `error`: a fault of the iteration that started it."""
        fault = self._maker.of(error, self._state.rank, time.monotonic())
        with suppress(StoreFailure):
            self._rounds.announce(iteration, fault)
        self._record(fault)

    def _record(self, fault: FaultRecord) -> None:
        self._events.write("fault", self._state.iteration, **fault.event_fields())


class ThreadFaults:
    """Python's hook for exceptions that end other threads than the main one, for `thread_exceptions="fault"`.

    A thread belongs to the iteration that started it. A thread that outlives its iteration may fail at any later time:
    that is not a fault of the iteration that runs then, and is only logged.

    Args:
        failed: called in the failing thread with its exception and the iteration that has started the thread.
    """

    def __init__(self, failed: Callable[[BaseException, int], None]) -> None:
        self._failed = failed
        self._former, self._installed = threading.excepthook, False
        self._iteration = -1
        self._older = WeakSet[threading.Thread]()

    def install(self) -> None:
        """Install the hook."""
        self._former, self._installed = threading.excepthook, True
        threading.excepthook = self._hook

    def uninstall(self) -> None:
        """Restore the previous hook; a hook that the user has set meanwhile stays, and may call this one."""
        if self._installed and threading.excepthook == self._hook:
            threading.excepthook = self._former
        self._installed = False

    def begin(self, iteration: int) -> None:
        """Mark all existing threads as older: the function of this iteration is entered now."""
        if self._installed:
            self._older, self._iteration = WeakSet(threading.enumerate()), iteration

    def _hook(self, hook: threading.ExceptHookArgs) -> None:
        try:
            if self._installed and hook.exc_value is not None and not isinstance(hook.exc_value, SystemExit):
                self._tell(hook.exc_value, hook.thread)
        finally:
            self._former(hook)  # it reads source files: after the others know

    def _tell(self, error: BaseException, thread: threading.Thread | None) -> None:
        older, iteration = self._older, self._iteration
        if thread is None or thread not in older:
            self._failed(error, iteration)
        else:
            log.warning("%s is older than iteration %d, and no fault of it: %s", thread.name, iteration, text_of(error))


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
    """Logs the exceptions of the function that the job survived: each with its traceback, once.

    Ranks that fail alike, as by a mistake in the script, are one traceback and not one for each rank: the rank that the
    round names as the cause logs it, and the cause of the next rounds is not logged again if it is alike, whichever
    rank it is of: the line of the restart names it. So the log waits for the round's decision; the event file does not,
    and has the traceback with all frames.

    The traceback is captured in the main thread, without its source lines. A thread of its own reads these and writes
    the text, so that neither a restart nor a watchdog waits for a file; lines that cannot be read in time are left out,
    and all of them where the process can start no thread. The end of the call waits for it, for a bounded time: a rank
    that leaves after its failure has logged it.

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

    def note(self, error: BaseException, iteration: int) -> None:
        """Note the exception that ended the function in `iteration`; a new one is written to the event file."""
        self._failure = None
        with suppress(MemoryError):  # which may be what the function has failed with
            try:
                self._capture_failure(error, iteration)
            except MemoryError:
                raise
            except Exception:  # boundary: a property of the user's exception
                told = "the function failed on initial rank %d in iteration %d: %s; its traceback cannot be shown"
                text = text_of(error)
                self._defer(lambda: log.error(told, self._initial_rank, iteration, text))

    def _capture_failure(self, error: BaseException, iteration: int) -> None:
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

    def log_noted(self, cause: FaultRecord | None) -> None:
        """Log the noted exception, if any; a repetition, or the failure of another rank too, is a line, or less.

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
