"""Output of workers into the log of their cycle: one pipe for both streams of a worker, and its rank before each line.

The pipe is read whatever the log does, so that a worker never waits for it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from nvrx_core.logs.rank_lines import RankLines
from nvrx_launcher.workers.output import CHUNK, Tee
from nvrx_launcher.workers.worker import Output

__all__ = ["CycleLog", "CyclePipes"]


class CycleLog(Protocol):
    """The log of a cycle."""

    def begin(self, cycle: int) -> None:
        """Begin the log of a cycle."""

    def write(self, lines: bytes) -> None:
        """Append whole lines, without waiting."""


class _CyclePipe(Tee):
    def __init__(self, lines: RankLines, write: Callable[[bytes], object]) -> None:
        self._open_pipe()
        self._rank_lines, self._write = lines, write

    @property
    def deadline(self) -> float:
        return self._rank_lines.deadline

    @property
    def waits_until(self) -> float:
        return math.inf

    def must_wait(self, *, now: float) -> bool:
        return False

    def tick(self, *, now: float) -> None:
        self._write(self._rank_lines.tick(now=now))

    def close(self) -> None:
        self.read_rest()
        self._write(self._rank_lines.flush())
        os.close(self.reader)

    def _read(self) -> int:
        try:
            data = os.read(self.reader, CHUNK)
        except BlockingIOError:
            return 0
        self._write(self._rank_lines.feed(data, now=time.monotonic()) if data else self._rank_lines.flush())
        self.is_at_end = not data
        return len(data)


class CyclePipes:
    """The pipes of the workers of a node.

    Args:
        log: receives their lines.
    """

    def __init__(self, log: CycleLog) -> None:
        self._log, self._lines, self._world_size = log, dict[int, RankLines](), 1

    def begin(self, cycle: int, environments: Mapping[int, Mapping[str, str]]) -> None:
        """Begin a cycle with the workers that have these environments, by local rank."""
        self._lines.clear()
        self._world_size = max((int(each["WORLD_SIZE"]) for each in environments.values()), default=1)
        self._log.begin(cycle)

    def open(self, local_rank: int, rank: int, attach: Callable[[Tee], object]) -> Output:
        """Open the streams of a worker; `attach` is called with the pipe that the loop must read."""
        lines = self._lines[local_rank] = RankLines(rank, self._world_size)
        pipe = _CyclePipe(lines, self._log.write)
        attach(pipe)
        return Output(pipe.writer, os.dup(pipe.writer))

    def latest(self, local_rank: int) -> bytes:
        """Return the latest output of a worker."""
        return self._lines[local_rank].tail if local_rank in self._lines else b""
