"""Log handlers of the wrapper: its records go to streams, not to files.

The streams are those of the first ancestor of nvrx's logger that has handlers when a record is made: the function may
configure logging. If none of them is a stream handler, or if no ancestor has handlers, warnings go to stderr. Records
are written without the handler's lock: the main thread may hold it, and an interruption may leave it locked. They are
written to the descriptor of the stream; for a stream without one, the lock is acquired with a timeout.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from nvrx_core.process.waiting import writable

__all__ = ["own_stream_handlers"]

LOCKED_FOR: Final = 1.0
"""Seconds after which a handler's lock counts as lost, and a blocked stream is skipped."""
STDERR: Final = 2


@contextmanager
def own_stream_handlers() -> Iterator[None]:
    """Let the package's logger write only to its ancestor's streams inside the context."""
    logger = logging.getLogger("nvrx_core")
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [_Streams(before[0], logger.parent)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before


def _streams(own: list[logging.Handler], logger: logging.Logger | None) -> list[logging.StreamHandler[Any]]:
    handlers = own
    while logger is not None and not handlers:
        handlers, logger = logger.handlers, logger.parent
    streams = [h for h in handlers if isinstance(h, logging.StreamHandler) and not isinstance(h, logging.FileHandler)]
    last = logging.lastResort
    return streams or ([last] if isinstance(last, logging.StreamHandler) else [])


class _Streams(logging.Handler):
    """Passes records to the streams.

    Args:
        own: the handlers of the package's logger.
        parent: its parent, whose handlers count if it has none.
    """

    def __init__(self, own: list[logging.Handler], parent: logging.Logger | None) -> None:
        super().__init__()
        self._own, self._parent = own, parent
        self._unlocked: dict[logging.Handler, _Unlocked] = {}

    def createLock(self) -> None:  # noqa: N802 (the base class's name)
        """Create no lock."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Write the record to each stream whose handler would."""
        written = False
        for each in _streams(self._own, self._parent):
            written |= self._unlocked.setdefault(each, _Unlocked(each)).handle(record)
        return written


class _Unlocked:
    """Writes with the level, filters and format of a handler, but without its lock.

    Args:
        target: the handler.
    """

    def __init__(self, target: logging.StreamHandler[Any]) -> None:
        self._target = target
        self._locked = False

    def handle(self, record: logging.LogRecord) -> bool:
        """Write the record if the handler would."""
        target = self._target
        passed: object = record.levelno >= target.level and target.filter(record)
        if isinstance(passed, logging.LogRecord):  # since 3.12 a filter may replace it
            record = passed
        if passed:
            self.emit(record)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record."""
        try:
            descriptor = _descriptor(self._target)
            if descriptor is None and not self._locked:
                self._emit_locked(record)
            else:
                self._write(descriptor, record)
        except Exception:  # boundary: a user's formatter or stream; logging reports it
            with suppress(ValueError, AttributeError):  # sys.stderr is closed, or deleted
                self._target.handleError(record)

    def _emit_locked(self, record: logging.LogRecord) -> None:
        lock = self._target.lock
        if lock is not None and not lock.acquire(timeout=LOCKED_FOR):
            self._locked = True
            self._write(None, record)
            return
        try:
            self._target.emit(record)
        finally:
            if lock is not None:
                lock.release()

    def _write(self, descriptor: int | None, record: logging.LogRecord) -> None:
        """Write to the descriptor, or else to stderr, if the process was started with one."""
        target = self._target
        if descriptor is None:
            if getattr(sys, "__stderr__", None) is None:
                return
            descriptor = STDERR
        encoding = getattr(target.stream, "encoding", None) or "utf-8"
        rest = (target.format(record) + target.terminator).encode(encoding, "backslashreplace")
        with suppress(OSError):  # a full disk: a report of it on the same stream would end the process with code 120
            while rest and writable(descriptor, LOCKED_FOR):
                rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]


def _descriptor(handler: logging.StreamHandler[Any]) -> int | None:
    """Return the descriptor of a handler's stream, if the handler only writes to it."""
    stream = handler.stream
    if type(handler).emit is not logging.StreamHandler.emit or type(stream) is not io.TextIOWrapper:
        return None
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None
