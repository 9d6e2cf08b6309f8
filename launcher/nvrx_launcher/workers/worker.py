"""One worker process: killed with the launcher, signalled as a process group, reaped once."""

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
    """The destinations of a worker's streams: a file or a pipe; None for the launcher's own stream."""

    stdout: int | IO[bytes] | None = None
    stderr: int | IO[bytes] | None = None

    def descriptors(self) -> tuple[int, int]:
        """Return the descriptors of both."""
        return _descriptor(self.stdout, 1), _descriptor(self.stderr, 2)

    def close(self) -> None:
        """Close the launcher's copies, once the worker has inherited them."""
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
        error_file: the file for its exception.
    """

    local_rank: int
    rank: int
    pid: int
    code: int
    error_file: Path

    def raw_error(self) -> str | None:
        """Return the content of its error file."""
        with suppress(OSError):
            return self.error_file.read_text(errors="replace")
        return None


class Worker:
    """A worker and its process group. The kernel kills it when the launcher exits.

    Args:
        local_rank: its number on this node.
        rank: its number in the job.
        pid: its process.
        ended: a descriptor that becomes readable when it exits; owned by the worker.
        wait: returns its exit code, negative for a signal; called once, after it has exited.

    Attributes:
        local_rank, rank, pid: the same.
        ended: becomes readable when it exits.
    """

    def __init__(self, local_rank: int, rank: int, pid: int, *, ended: int, wait: Callable[[], int]) -> None:
        self.local_rank, self.rank, self.pid = local_rank, rank, pid
        self.ended, self._wait = ended, wait

    def send(self, signum: int) -> None:
        """Send a signal to the worker's process group."""
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, signum)
            else:  # a function's process that has not created its own group yet
                os.kill(self.pid, signum)

    def reap(self, *, spares_rest: bool = False) -> int:
        """Return its exit code, negative for a signal, and kill the rest of its process group.

        Args:
            spares_rest: not if it has exited with code 0.
        """
        if not (spares_rest and self._is_done()):
            self.send(signal.SIGKILL)  # before its pid can be reused
        code = self._wait()
        os.close(self.ended)
        return code

    def _is_done(self) -> bool:
        """Whether it has exited with code 0; it is not reaped yet."""
        with suppress(ChildProcessError):  # a multiprocessing fork server is its parent
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            return ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)
        return False
