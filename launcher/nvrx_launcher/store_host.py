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

from nvrx_core.parsing import endpoint_text
from nvrx_core.store.endpoint import listener_at
from nvrx_launcher.guardian import start_guarded
from nvrx_launcher.loop import EventLoop

__all__ = ["ControlStore"]

log = logging.getLogger("nvrx_launcher")


class ControlStore:
    """The store from a launcher's point of view. Each cycle may have another one: that of the coordinator's launcher.

    Args:
        loop: the event loop that watches its descriptors.
        job: the job's name.
        address: the address to host it at, where it is hosted here.
        hosted: called when the first rank has connected to the one that is hosted here.

    Attributes:
        endpoint: the endpoint of the current cycle's store; empty before the first cycle.
    """

    def __init__(self, loop: EventLoop, job: str, *, address: str, hosted: Callable[[], object] = bool) -> None:
        self._loop, self._job, self._address, self._hosted = loop, job, address, hosted
        self._listener: socket.socket | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._answers = dict[int, Callable[[bool], object]]()
        self._own, self._used = "", set[str]()
        self.endpoint = ""

    @property
    def is_in_use(self) -> bool:
        """Whether a rank has connected to it, as far as this launcher knows."""
        return self._program is not None

    def own_endpoint(self) -> str:
        """Return the endpoint of this launcher's own store, which listens from then on.

        Raises:
            OSError: when the address cannot be used.
        """
        if not self._own:
            self._listener = listener_at(self._address, 0)
            self._loop.watch(self._listener.fileno(), self._host)
            self._own = endpoint_text(self._address, self._listener.getsockname()[1])
        return self._own

    def used_by_a_rank(self, endpoint: str) -> None:
        """Record that a rank has connected to the store at an endpoint, whichever launcher hosts it."""
        self._used.add(endpoint)
        self._prepare()

    def begin_cycle(self, endpoint: str = "") -> None:
        """Use the store at an endpoint, by default this launcher's own.

        The keys of wrapped calls of the previous cycle are deleted: these calls were killed.
        """
        before, self.endpoint = self.endpoint, endpoint or self.own_endpoint()
        if before not in ("", self.endpoint):
            self._end_program(before)
            self._prepare()
        elif self.endpoint == self._own and self._program is not None:
            self._write("forget")

    def _prepare(self) -> None:
        """Start the program that queries another launcher's store, unless it runs: a rank uses that store."""
        if self._program is None and self.endpoint in self._used and self.endpoint != self._own:
            self._start(self.endpoint)

    def ask(self, rank: int, within: float, answer: Callable[[bool], object]) -> None:
        """Query whether the job continues without a rank; only when the store is in use.

        Args:
            rank: the rank's RANK when it was started.
            within: seconds until the answer is no.
            answer: called in the loop, with whether a round was entered without it.
        """
        self._answers[rank] = answer
        self._write(f"{rank} {within}")

    def close(self) -> None:
        """End it."""
        if self._listener is not None:
            self._loop.forget(self._listener.fileno())
            self._listener.close()
        self._end_program(self.endpoint)

    def _end_program(self, endpoint: str) -> None:
        if self._program is not None and self._program.stdout is not None:
            self._loop.forget(self._program.stdout.fileno())
            self._program.kill()
            self._program.communicate()
            self._program = None
            self._answers.clear()
            self._own = self._own if endpoint != self._own else ""

    def _host(self) -> None:
        """Start to host the store: the first rank connects."""
        assert self._listener is not None
        self._loop.forget(self._listener.fileno())
        log.info("host the store of in-process restart at %s", self._own)
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
        """Deliver the answers; a program that has ended answers no."""
        assert self._program is not None
        assert self._program.stdout is not None
        text = os.read(self._program.stdout.fileno(), 1 << 16).decode()
        if not text:
            self._loop.forget(self._program.stdout.fileno())
        for line in text.splitlines() or [f"{rank} 0" for rank in self._answers]:
            rank, found = line.split()
            if answer := self._answers.pop(int(rank), None):
                answer(found == "1")
