"""The store of in-process restart, beside the launcher: rank 0 may die like any other.

The launcher of the job's coordinator listens. The program that hosts the store is started when the first rank connects,
and takes the listening socket over: a job that does not use it pays nothing. The launchers of other nodes start the
program then, too, to ask it.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

from nvrx_launcher.guardian import start_guarded
from nvrx_launcher.loop import EventLoop

__all__ = ["ControlStore"]

log = logging.getLogger("nvrx_launcher")


class ControlStore:
    """The store, as a launcher knows it.

    Args:
        loop: where its descriptors are watched.
        job: the job's name.
        endpoint: where it listens, if another launcher hosts it; None: it is hosted here.
        address: the address to host it at.
        hosted: called when the first rank has connected to the one that is hosted here.
    """

    def __init__(
        self,
        loop: EventLoop,
        job: str,
        *,
        endpoint: str | None = None,
        address: str = "",
        hosted: Callable[[], object] = bool,
    ) -> None:
        self._loop, self._job, self._hosted = loop, job, hosted
        self._listener: socket.socket | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._answers = dict[int, Callable[[bool], object]]()
        self._hosts = endpoint is None
        if endpoint is None:
            self._listener = socket.create_server((address, 0), backlog=4096)
            loop.watch(self._listener.fileno(), self._host)
        self.endpoint = endpoint or f"{address}:{self._listener.getsockname()[1]}"  # type: ignore[union-attr]

    @property
    def is_in_use(self) -> bool:
        """Whether a rank has connected to it, as far as this launcher knows."""
        return self._program is not None

    def prepare(self) -> None:
        """Start the program that answers questions, where it does not run: a rank has connected to the store."""
        if self._program is None and self._listener is None:
            self._start(self.endpoint)

    def begin_cycle(self) -> None:
        """Forget the wrapped calls of the cycle before: they were killed, and have left their keys."""
        if self._hosts and self._program is not None:
            self._write("forget")

    def ask(self, rank: int, within: float, answer: Callable[[bool], object]) -> None:
        """Find out whether the job goes on without a rank; only when the store is in use.

        Args:
            rank: the rank's RANK when it was started.
            within: seconds that it has.
            answer: called in the loop, with whether a round was entered without it.
        """
        self._answers[rank] = answer
        self._write(f"{rank} {within}")

    def close(self) -> None:
        """End it."""
        if self._listener is not None:
            self._loop.forget(self._listener.fileno())
            self._listener.close()
        if self._program is not None and self._program.stdout is not None:
            self._loop.forget(self._program.stdout.fileno())
            self._program.kill()
            self._program.communicate()

    def _host(self) -> None:
        """Have the store hosted: the first rank connects."""
        assert self._listener is not None
        self._loop.forget(self._listener.fileno())
        log.info("host the store of in-process restart at %s", self.endpoint)
        self._start(str(self._listener.fileno()), self._listener.fileno())
        self._listener.close()
        self._listener = None
        self._hosted()

    def _start(self, where: str, *keep: int) -> None:
        command = [sys.executable, "-m", "nvrx_launcher.store_program", where, self._job]
        self._program = start_guarded(command, pass_fds=keep, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._program.stdout is not None
        self._loop.watch(self._program.stdout.fileno(), self._read)

    def _write(self, line: str) -> None:
        assert self._program is not None
        assert self._program.stdin is not None
        with suppress(BrokenPipeError):  # its end is read
            self._program.stdin.write(f"{line}\n".encode())
            self._program.stdin.flush()

    def _read(self) -> None:
        """Hand on the answers; a program that has ended answers no."""
        assert self._program is not None
        assert self._program.stdout is not None
        text = os.read(self._program.stdout.fileno(), 1 << 16).decode()
        if not text:
            self._loop.forget(self._program.stdout.fileno())
        for line in text.splitlines() or [f"{rank} 0" for rank in self._answers]:
            rank, found = line.split()
            if answer := self._answers.pop(int(rank), None):
                answer(found == "1")
