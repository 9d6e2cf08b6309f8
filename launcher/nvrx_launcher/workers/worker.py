"""One worker process: started with the node's launcher as its guard, signalled as a group, reaped once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["Failure", "Output", "Worker"]


@dataclass(frozen=True)
class Output:
    """Where a stream of a worker goes: a file, or a pipe; None is the launcher's own stream."""

    stdout: int | IO[bytes] | None = None
    stderr: int | IO[bytes] | None = None

    def descriptors(self) -> tuple[int, int]:
        """Return the descriptors of both."""
        return _descriptor(self.stdout, 1), _descriptor(self.stderr, 2)

    def close(self) -> None:
        """Close the launcher's copies, once the worker has its own."""
        for stream in (self.stdout, self.stderr):
            if isinstance(stream, int):
                os.close(stream)
            elif stream is not None:
                stream.close()


def _descriptor(stream: int | IO[bytes] | None, default: int) -> int:
    return default if stream is None else stream if isinstance(stream, int) else stream.fileno()


@dataclass(frozen=True)
class Failure:
    """A worker that has failed.

    Attributes:
        local_rank: its number on this node.
        rank: its number in the job.
        pid: its process.
        code: its exit code, negative for a signal.
        error_file: where it may have left its exception.
    """

    local_rank: int
    rank: int
    pid: int
    code: int
    error_file: Path

    def raw_error(self) -> str | None:
        """Return what it has left in its error file."""
        with suppress(OSError):
            return self.error_file.read_text(errors="replace")
        return None


class Worker:
    """A worker and its process group. The kernel kills it when the launcher is gone.

    Args:
        ranks: its local rank, and its rank.
        pid: its process.
        ended: a descriptor that becomes readable when it has ended; closed with it.
        wait: returns its exit code, negative for a signal; called once, when it has ended.

    Attributes:
        local_rank: its number on this node.
        rank: its number in the job.
        pid: its process.
        ended: becomes readable when it has ended.
    """

    def __init__(self, ranks: tuple[int, int], pid: int, *, ended: int, wait: Callable[[], int]) -> None:
        self.local_rank, self.rank = ranks
        self.pid, self.ended, self._wait = pid, ended, wait

    def send(self, signum: int) -> None:
        """Send a signal to the worker and to what it has started."""
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, signum)
            else:  # a function's process, which has not got as far as its own group
                os.kill(self.pid, signum)

    def reap(self) -> int:
        """Return how it ended, negative for a signal, and kill what it has left behind in its process group."""
        self.send(signal.SIGKILL)  # before its pid is given back
        code = self._wait()
        os.close(self.ended)
        return code
