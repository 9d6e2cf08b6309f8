"""Where output of workers goes that may not take it: a disk that is full, a terminal or a pipe that is gone.

That is no reason to end a job: what cannot be written is lost, and the log says so.
"""

from __future__ import annotations

import logging
from typing import IO

__all__ = ["Outlet"]

log = logging.getLogger("nvrx_launcher")


class Outlet:
    """A stream that may fail, and may come to work again.

    Args:
        stream: takes bytes; None: there is none, and nothing is written.
        name: of it, for people.
    """

    def __init__(self, stream: IO[bytes] | None, name: str) -> None:
        self._stream, self._name, self._lost = stream, name, 0

    def write(self, data: bytes) -> None:
        """Write all of it, as far as that is possible."""
        if self._stream is None:
            return
        rest = memoryview(data)
        try:
            while rest:  # an unbuffered file takes a part, where the disk has room for a part
                rest = rest[self._stream.write(rest) :]
            self._stream.flush()
        except OSError as error:
            if not self._lost:
                log.warning("output of workers is lost: %s: %s", self._name, error)
            self._lost += len(rest)
        else:
            self._say_what_was_lost()

    def close(self) -> None:
        """Close the stream, if that is possible."""
        self._say_what_was_lost()
        if self._stream is not None:
            self._stream.close()

    def _say_what_was_lost(self) -> None:
        if self._lost:
            log.warning("%d bytes of output of workers were lost: %s", self._lost, self._name)
            self._lost = 0
