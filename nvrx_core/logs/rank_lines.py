"""Output of a worker as the lines of a log that it shares with other ranks. Pure.

A line is `<rank>: <text>`, the rank as wide as the job's largest one. Text is UTF-8; other bytes become U+FFFD, and
zeros `<NUL>`, as in the logs of nvidia-resiliency-ext. Nothing is left out. A carriage return ends no line: the updates
of a progress bar that come within a second are one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

__all__ = ["MAX_LINE", "TAIL", "RankLines", "last_traceback"]

MAX_LINE: Final = 1 << 16
"""Bytes of an unterminated line after which the rest is a line of its own."""
ENDS_AFTER: Final = 1.0
"""Seconds after which an unterminated line is written; the rest of it is a line of its own."""
TAIL: Final = 1 << 15
"""Bytes of the latest lines that are kept."""
TRACEBACK: Final = b"Traceback (most recent call last):"
BLOCK: Final = 200
"""Lines of a traceback that are returned; it keeps its first and its last half."""


class RankLines:
    """Splits the output of a worker, and puts its rank before each line.

    Args:
        rank: its rank.
        world_size: how many ranks there are; says how wide the rank is.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
        tail: the latest lines without the rank, up to `TAIL` bytes or one read more.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._prefix = f"{rank:>{len(str(max(world_size - 1, 0)))}}: ".encode()
        self._parts, self._size, self.deadline, self.tail = list[bytes](), 0, math.inf, b""

    def feed(self, data: bytes, *, now: float) -> bytes:
        """Take output; return the lines that are complete, each with the rank and a newline."""
        end = data.rfind(b"\n") + 1
        lines = b""
        if end:
            lines = self._take(data[:end])
            data = data[end:]
        if data:
            if not self._parts:
                self.deadline = now + ENDS_AFTER
            self._parts.append(data)
            self._size += len(data)
        return lines + self.flush() if self._size > MAX_LINE else lines

    def tick(self, *, now: float) -> bytes:
        """Return the line that has been unterminated for too long."""
        return self.flush() if now >= self.deadline else b""

    def flush(self) -> bytes:
        """Return the unterminated line, if there is one."""
        return self._take(b"\n") if self._parts else b""

    def _take(self, end: bytes) -> bytes:
        text = b"".join((*self._parts, end))
        self._parts.clear()
        self._size, self.deadline = 0, math.inf
        if b"\0" in text:
            text = text.replace(b"\0", b"<NUL>")
        if not text.isascii():
            text = text.decode(errors="replace").encode()
        self.tail = text[-TAIL:] if len(text) >= TAIL else (self.tail + text)[-TAIL:]
        return self._prefix + text[:-1].replace(b"\n", b"\n" + self._prefix) + b"\n"


def last_traceback(tail: bytes) -> str:
    """Return the last Python traceback at the end of a worker's output, "" if there is none.

    A chain of exceptions is returned from its first one. What is printed after the exception is not part of it.
    """
    lines = tail.decode(errors="replace").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(TRACEBACK.decode())]
    if not starts:
        return ""
    end = _end(lines, starts[-1] + 1)
    begin = starts.pop()
    while starts and _is_chained(lines[_end(lines, starts[-1] + 1) : begin]):
        begin = starts.pop()
    found = lines[begin:end]
    if len(found) > BLOCK:
        found[BLOCK // 2 : -BLOCK // 2] = [f"... {len(found) - BLOCK} lines ..."]
    return "\n".join(found)


def _end(lines: Sequence[str], number: int) -> int:
    """Return the number of the line after a traceback's exception, whose frames begin at `number`."""
    while number < len(lines) and (lines[number].startswith(" ") or not lines[number]):
        number += 1
    number += 1  # the exception; its message may have further lines, which are not told from other output
    return min(number, len(lines))


def _is_chained(between: Sequence[str]) -> bool:
    """Whether the lines between two tracebacks say that one exception has led to the other."""
    text = " ".join(between)
    return "direct cause of the following exception" in text or "another exception occurred" in text
