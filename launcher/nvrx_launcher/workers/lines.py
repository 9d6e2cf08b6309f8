"""Output of a worker as lines: also the parts of one that is still being written. Pure.

A carriage return ends a line as torchrun has it, so that a progress bar, which never writes a newline, shows. So does a
pause in the middle of a line: the rest of it is a line of its own, and each line has its prefix.
"""

from __future__ import annotations

import math
import re
from typing import Final

__all__ = ["Lines"]

SHOWN_AFTER: Final = 0.2
"""Seconds without more output after which an unterminated line is shown."""
MAX_LINE: Final = 1 << 20
"""Bytes of an unterminated line after which it is shown."""
ENDS: Final = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""The ends of lines; whether a carriage return at the end of the data ends one depends on what follows."""


class Lines:
    """Splits a stream.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self) -> None:
        self._rest, self.deadline = b"", math.inf

    def feed(self, data: bytes, *, now: float) -> list[bytes]:
        """Take more output, and return the lines that are complete, without their ends."""
        lines, begin, data = list[bytes](), 0, self._rest + data
        for end in ENDS.finditer(data):
            line, begin = data[begin : end.start()], end.end()
            if line or end[0] != b"\r":  # what begins with a carriage return, as a progress bar does, begins no line
                lines.append(line)
        self._rest = data[begin:]
        if len(self._rest) > MAX_LINE:
            lines += self.flush()
        self.deadline = now + SHOWN_AFTER if self._rest else math.inf
        return lines

    def tick(self, *, now: float) -> list[bytes]:
        """Return the line that has been unterminated for a while."""
        return self.flush() if now >= self.deadline else []

    def flush(self) -> list[bytes]:
        """Return the unterminated line, if there is one."""
        line, self._rest, self.deadline = self._rest.rstrip(b"\r"), b"", math.inf
        return [line] if line else []
