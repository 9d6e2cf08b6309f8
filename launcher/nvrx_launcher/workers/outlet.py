"""A destination of worker output that may fail: a full disk, a closed terminal or pipe.

Such a failure does not end the job: output that cannot be written is dropped, and the log says so.
"""

from __future__ import annotations

import logging
from typing import IO

__all__ = ["Outlet"]

log = logging.getLogger("nvrx_launcher")


class Outlet:
    """A stream that may fail, and may recover.

    Args:
        stream: a binary stream; None: nothing is written.
        name: its name in the log.
    """

    def __init__(self, stream: IO[bytes] | None, name: str) -> None:
        self._stream, self._name, self._lost = stream, name, 0

    def write(self, data: bytes) -> None:
        """Write the bytes, as far as possible."""
        if self._stream is None:
            return
        rest = memoryview(data)
        try:
            while rest:  # an unbuffered file writes a part, if the disk has room for a part
                rest = rest[self._stream.write(rest) :]
            self._stream.flush()
        except OSError as error:
            if not self._lost:
                log.warning("output of workers is lost: %s: %s", self._name, error)
            self._lost += len(rest)
        else:
            self._say_what_was_lost()

    def close(self) -> None:
        """Close the stream, if possible."""
        self._say_what_was_lost()
        if self._stream is not None:
            self._stream.close()

    def _say_what_was_lost(self) -> None:
        if self._lost:
            log.warning("%d bytes of output of workers were lost: %s", self._lost, self._name)
            self._lost = 0
