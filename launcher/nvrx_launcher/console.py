"""The launcher's own streams: the output of its workers, and its log lines. Nothing waits for them."""

from __future__ import annotations

import io
import logging
import os
import sys
import time
import traceback
from typing import IO, Any, Final

from nvrx_launcher.backlog import Backlog
from nvrx_launcher.outlet import Outlet, Sink, Writer, to_descriptor, to_stream

__all__ = ["DRAIN_TIMEOUT", "Console", "ConsoleHandler"]

LIMIT: Final = 1 << 20
"""Bytes that may wait for a stream."""
RESERVE: Final = 1 << 16
"""Further bytes, for log lines."""
DRAIN_TIMEOUT: Final = 5.0
"""Seconds that the launcher waits at its end for streams that do not take all."""
STDERR_DRAIN_TIMEOUT: Final = 0.5
"""Seconds more for stderr, when stdout has not taken all."""


class Console:
    """Standard output and standard error of the launcher; one destination if both are the same file.

    Attributes:
        stdout, stderr: the destinations.
    """

    def __init__(self) -> None:
        self._writers = [Writer()]
        name = "the launcher's stdout"
        if is_one := _file(sys.stdout) == _file(sys.stderr) is not None:
            name = "the launcher's stdout and stderr"
        self.stdout = self.stderr = _outlet(sys.stdout, name, self._writers[0])
        if not is_one:
            self._writers.append(Writer())
            self.stderr = _outlet(sys.stderr, "the launcher's stderr", self._writers[1])

    @property
    def rooms(self) -> list[int]:
        """Descriptors that become readable when a stream has taken output after it did not."""
        return [writer.room for writer in self._writers]

    def close(self, within: float = DRAIN_TIMEOUT) -> None:
        """Write what waits, within `within` seconds, and end the threads."""
        deadline = time.monotonic() + within
        if not self._writers[0].drain(within):
            self.stdout.say_lost()  # to stderr, which may take it
            deadline = max(deadline, time.monotonic() + STDERR_DRAIN_TIMEOUT)
        for writer in self._writers:
            writer.close(max(0.0, deadline - time.monotonic()))


class ConsoleHandler(logging.Handler):
    """Writes log lines to a stream of the launcher, without waiting for it.

    Args:
        outlet: the destination.
    """

    def __init__(self, outlet: Outlet) -> None:
        super().__init__()
        self._outlet = outlet

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record."""
        try:
            line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        except Exception:  # boundary: arguments that do not fit a format; logging's own handler prints, and waits
            line = traceback.format_exc().encode(errors="backslashreplace")
        self._outlet.write(line, is_own=True)


def _outlet(stream: IO[str] | None, name: str, writer: Writer) -> Outlet:
    return Outlet(_sink(stream), name, writer, Backlog(LIMIT, reserve=RESERVE))


def _sink(stream: IO[str] | None) -> Sink | None:
    binary: IO[bytes] | None = getattr(stream, "buffer", None)
    if stream is None or binary is None:
        return None
    try:
        return to_descriptor(stream.fileno())
    except (OSError, ValueError):
        return to_stream(binary)


def _file(stream: Any) -> tuple[int, int, int] | None:
    """Return what identifies the open file of a stream; None if it has none."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError, io.UnsupportedOperation):
        return None
    return found.st_dev, found.st_ino, found.st_rdev
