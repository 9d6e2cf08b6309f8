"""A log handler that never waits for the reader of its stream.

A rank monitor logs to the stream that the launcher and the workers print to. A terminal or pipe that nobody reads for a
while must not keep it from its rank.

A pipe or a terminal is opened once more, without blocking: the flag belongs to the open file description, and those
who share the original one would get EAGAIN. Where that is refused, `poll` is asked before each write.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import traceback
from contextlib import suppress
from typing import Final

from nvrx_core.process.waiting import writable

__all__ = ["UnblockedHandler"]

PIECE: Final = select.PIPE_BUF
"""Bytes that a pipe takes as a whole, or not at all."""


class UnblockedHandler(logging.Handler):
    """Writes lines that a stream takes at once; the others are lost, and the next one that it takes says how many.

    Args:
        fd: the descriptor of the stream.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._own = _opened_again(fd)
        self._fd, self._lost = fd if self._own is None else self._own, 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it as lost."""
        try:
            text = self.format(record)
        except Exception:  # boundary: arguments that do not fit a format; logging's own handler prints, and waits
            text = traceback.format_exc()
        if self._lost:
            text = f"{self._lost} lines of this log were lost: nobody has read them\n{text}"
        self._lost = 0 if self._write(f"{text}\n".encode(errors="backslashreplace")) else self._lost + 1

    def close(self) -> None:
        """Close what was opened."""
        if self._own is not None:
            os.close(self._own)
            self._own = None
        super().close()

    def _write(self, rest: bytes) -> bool:
        """Write as much as the stream takes; return whether that was all."""
        with suppress(OSError):  # it takes nothing now, or its reader is gone
            while rest and writable(self._fd, 0.0):
                rest = rest[os.write(self._fd, rest[:PIECE]) :]
        return not rest


def _opened_again(fd: int) -> int | None:
    """Return another descriptor of the same pipe or terminal, which does not block; None where there can be none."""
    with suppress(OSError):  # it is closed, another user's, or has no reader
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode) or os.isatty(fd):
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return None
