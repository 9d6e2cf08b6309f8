"""One worker process: started with the node's launcher as its guard, signalled as a group, reaped once."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Self

from nvrx_core.process.lifeline import open_pidfd
from nvrx_launcher.guardian import start_guarded

__all__ = ["Output", "Worker"]


@dataclass(frozen=True)
class Output:
    """Where a stream of a worker goes: a file, or a pipe; None is the launcher's own stream."""

    stdout: int | IO[bytes] | None = None
    stderr: int | IO[bytes] | None = None

    def close(self) -> None:
        """Close the launcher's copies, once the worker has its own."""
        for stream in (self.stdout, self.stderr):
            if isinstance(stream, int):
                os.close(stream)
            elif stream is not None:
                stream.close()


class Worker:
    """A worker and its process group. The kernel kills it when the launcher is gone.

    Attributes:
        local_rank: its number on this node.
        rank: its number in the job.
        pid: its process.
        pidfd: becomes readable when it has ended.
    """

    def __init__(self, local_rank: int, rank: int, process: subprocess.Popen[bytes]) -> None:
        self.local_rank, self.rank, self._process = local_rank, rank, process
        self.pid, self.pidfd = process.pid, open_pidfd(process.pid)

    @classmethod
    def start(
        cls, ranks: tuple[int, int], command: Sequence[str], environment: Mapping[str, str], output: Output
    ) -> Self:
        """Start it, in the thread whose end is to be its end.

        Args:
            ranks: its local rank, and its rank.
            command: program and arguments.
            environment: all of it.
            output: where it prints.

        Raises:
            OSError: when the program cannot be started.
        """
        process = start_guarded(command, env=dict(environment), stdout=output.stdout, stderr=output.stderr)
        return cls(*ranks, process)

    def send(self, signum: int) -> None:
        """Send a signal to the worker and to what it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def reap(self) -> int:
        """Return how it ended, negative for a signal, and kill what it has left behind in its process group."""
        self.send(signal.SIGKILL)  # before its pid is given back
        code = self._process.wait()
        os.close(self.pidfd)
        return code
