"""The store of in-process restart, beside the launcher: rank 0 may die like any other.

A launcher listens where its store would be, and each cycle has the store of one launcher: that of the coordinator. The
program that hosts it is started when the first rank connects, and takes the listening socket over: a job that does not
use it pays nothing. The launchers of other nodes start the program then, too, to ask it.

A program that ends, or gives no sign of life (`StoreWatch`), is lost. With one that hosts the store the cycle is lost:
the next one has another store at another endpoint. One that only asks is replaced.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nvrx_core.parsing import endpoint_text
from nvrx_core.process.children import watch_child
from nvrx_core.process.lifeline import describe_exit, exit_status, is_stopped
from nvrx_core.process.memory import MemoryKills
from nvrx_core.process.signals import signal_name
from nvrx_core.store.endpoint import listener_at
from nvrx_launcher.guardian import start_guarded
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.service_program import end_program
from nvrx_launcher.store_program import ALIVE
from nvrx_launcher.store_watch import StoreWatch

__all__ = ["HostedStoreLost", "RoundAnswer", "StoreEvent", "StoreHost", "StoreUsed"]

log = logging.getLogger("nvrx_launcher")
ANSWERS_LATE: Final = 5.0
"""Seconds that an answer may take beyond the time in which the job may go on without a rank."""
END_TIMEOUT: Final = 2.0
"""Seconds that a killed program has to end."""
MAX_REPLACED: Final = 3
"""How often the program that asks another launcher's store is replaced in a cycle."""
OUT_OF_MEMORY: Final = ", and the kernel's OOM killer was active in its cgroup"


@dataclass(frozen=True)
class StoreUsed:
    """The first rank has connected to the store that is hosted here: the other launchers must know."""


@dataclass(frozen=True)
class HostedStoreLost:
    """The store that is hosted here, which is the current cycle's, is lost."""

    reason: str


@dataclass(frozen=True)
class RoundAnswer:
    """The answer to `ask`: whether a round of a cycle was entered without a rank."""

    cycle: int
    rank: int
    is_entered: bool


StoreEvent = StoreUsed | HostedStoreLost | RoundAnswer


@dataclass(frozen=True)
class _Question:
    """A question that waits for its answer until `deadline`, monotonic seconds."""

    deadline: float
    cycle: int


class _Program:
    """The running program, at the launcher's end of its pipes.

    Args:
        where: the descriptor that it hosts the store on, or the endpoint of the one that it asks.
        job: the job's name.
        keep: descriptors that it inherits.

    Attributes:
        pid: its process.
        ended: becomes readable when it exits.
        said: becomes readable when it has written.
        watch: decides whether it works.
    """

    def __init__(self, where: str, job: str, *keep: int) -> None:
        command = [sys.executable, "-m", "nvrx_launcher.store_program", where, job]
        self._process = start_guarded(command, pass_fds=keep, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self.said = self._process.stdin, self._process.stdout.fileno()
        self.pid, self.ended = self._process.pid, watch_child(self._process)
        os.set_blocking(self._input.fileno(), False)
        os.set_blocking(self.said, False)
        self.watch, self._memory_kills = StoreWatch(now=time.monotonic()), MemoryKills(os.getpid())

    def write(self, line: str) -> None:
        """Write a line; one that does not fit in the pipe of a program that does not read is left out."""
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._input.fileno(), f"{line}\n".encode())

    def lines(self) -> list[str]:
        """Return what it has said since the last call."""
        with suppress(BlockingIOError):
            return os.read(self.said, 1 << 16).decode(errors="replace").splitlines()
        return []

    def how_it_ended(self) -> str:
        """Describe the exit of the process, before `close`."""
        how = f"was {describe_exit(exit_status(self.pid, self.ended))}"
        was_killed = how.endswith(signal_name(signal.SIGKILL))
        return how + OUT_OF_MEMORY if was_killed and self._memory_kills.rose() else how

    def close(self) -> None:
        """Kill it, and close its pipes."""
        end_program(self._process, self.ended, "program of the store of in-process restart", END_TIMEOUT)


class StoreHost:
    """The store from a launcher's point of view. Each cycle may have another one: that of the coordinator's launcher.

    Args:
        loop: the event loop that watches its descriptors.
        job: the job's name.
        address: the address to host it at, where it is hosted here.

    Attributes:
        endpoint: the endpoint of the current cycle's store; empty before the first cycle.
    """

    def __init__(self, loop: EventLoop, job: str, *, address: str) -> None:
        self._loop, self._job, self._address, self._events = loop, job, address, deque[StoreEvent]()
        self._listener: socket.socket | None = None
        self._program: _Program | None = None
        self._questions = dict[int, _Question]()
        self._own, self._used, self._lost, self._replaced = "", set[str](), set[str](), 0
        self.endpoint = ""

    @property
    def is_in_use(self) -> bool:
        """Whether a rank has connected to it, as far as this launcher knows."""
        return self._program is not None

    def events(self) -> Iterator[StoreEvent]:
        """Yield what has happened since the last call."""
        while self._events:
            yield self._events.popleft()

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        watched = math.inf if self._program is None else self._program.watch.deadline
        return min([watched, *(each.deadline for each in self._questions.values())])

    def tick(self, *, now: float) -> None:
        """Handle that time has passed: a silent program is lost, an answer that does not come is no."""
        program = self._program
        why = ""
        if program is not None and now >= program.watch.deadline:
            why = program.watch.tick(now=now, is_stopped=is_stopped(program.pid))
        if why:
            self._lose(why)
        for rank in [rank for rank, each in self._questions.items() if now >= each.deadline]:
            self._answer(rank, found=False)

    def own_endpoint(self) -> str:
        """Return the endpoint of this launcher's own store, which listens from then on.

        A connection has an effect only in a cycle that has this store: others may not come from a rank.

        Raises:
            OSError: when the address cannot be used.
        """
        if not self._own:
            self._listener = listener_at(self._address, 0)
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
        self._replaced = 0
        if before not in ("", self.endpoint):
            self._end_program()
            if before == self._own and self._listener is None:  # its program has ended; else it still listens
                self._own = ""
            self._prepare()
        elif self.endpoint == self._own and self._program is not None:
            self._program.write("forget")
        self._await_first_rank()
        if self.endpoint in self._lost:  # it was offered before its end was noticed
            reason = f"the store of in-process restart at {self.endpoint} was lost before the cycle began"
            self._events.append(HostedStoreLost(reason))

    def _await_first_rank(self) -> None:
        """Watch the listener in a cycle that has this launcher's store, and in no other."""
        if self._listener is not None:
            self._loop.forget(self._listener.fileno())
            if self.endpoint == self._own:
                self._loop.watch(self._listener.fileno(), self._host)

    def _prepare(self) -> None:
        """Start the program that queries another launcher's store, unless it runs: a rank uses that store."""
        if self._program is None and self.endpoint in self._used and self.endpoint != self._own:
            self._ask_at(self.endpoint)

    def ask(self, rank: int, cycle: int, within: float) -> None:
        """Query whether the job continues without a rank; only when the store is in use. A `RoundAnswer` follows.

        Args:
            rank: the rank's RANK when it was started.
            cycle: the cycle in which it was started.
            within: seconds until the answer is no; what does not answer by then is given `ANSWERS_LATE` more.
        """
        assert self._program is not None
        self._questions[rank] = _Question(time.monotonic() + within + ANSWERS_LATE, cycle)
        self._program.write(f"{rank} {within}")

    def close(self) -> None:
        """End it."""
        self._stop_listening()
        self._end_program()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.forget(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def _end_program(self) -> None:
        self._questions.clear()
        self._close_program()

    def _close_program(self) -> None:
        if self._program is not None:
            self._loop.forget(self._program.said)
            self._loop.forget(self._program.ended)
            self._program.close()
            self._program = None

    def _host(self) -> None:
        """Start to host the store: the first rank connects."""
        assert self._listener is not None
        log.info("host the store of in-process restart at %s", self._own)
        failure = self._start(str(self._listener.fileno()), self._listener.fileno())
        self._stop_listening()
        if failure:
            self._own_lost(f"cannot be hosted: {failure}")
        else:
            self._events.append(StoreUsed())

    def _ask_at(self, endpoint: str) -> None:
        """Start to ask another launcher's store; while nobody asks, a failure of a worker ends the cycle."""
        if failure := self._start(endpoint):
            log.error("the program that asks the store at %s cannot be started: %s", endpoint, failure)

    def _start(self, where: str, *keep: int) -> str:
        """Start the program; return why it cannot be started, "" if it is."""
        try:
            program = self._program = _Program(where, self._job, *keep)
        except OSError as error:
            return str(error)
        self._loop.watch(program.said, lambda: self._read(program))
        self._loop.watch(program.ended, lambda: self._ended(program))
        return ""

    def _read(self, program: _Program) -> None:
        """Deliver the answers."""
        lines = program.lines()
        if not lines:  # its end of the pipe is closed
            self._loop.forget(program.said)
            return
        for line in lines:
            rank, _, found = line.partition(" ")
            is_answer = rank.isdecimal() and found in ("0", "1")
            if line == ALIVE or is_answer:  # else its interpreter prints, as a `sitecustomize` may
                program.watch.heard(now=time.monotonic())
            if is_answer:
                self._answer(int(rank), found=found == "1")

    def _ended(self, program: _Program) -> None:
        """Handle that the program has exited."""
        self._read(program)
        if self._program is program:  # an answer may have ended the job
            self._lose(program.how_it_ended())

    def _lose(self, why: str) -> None:
        """Handle the loss of the program."""
        assert self._program is not None
        pid = self._program.pid
        self._close_program()
        if self.endpoint == self._own:
            self._own_lost(f"(pid {pid}) {why}")
        elif self._replaced < MAX_REPLACED:
            log.warning("the program that asks the store at %s (pid %d) %s: it is replaced", self.endpoint, pid, why)
            self._replaced += 1
            self._ask_at(self.endpoint)
            if self._program is not None:
                for rank, question in self._questions.items():
                    left = max(0.0, question.deadline - ANSWERS_LATE - time.monotonic())
                    self._program.write(f"{rank} {left}")
                return
        else:
            log.error("the program that asks the store at %s (pid %d) %s, once more", self.endpoint, pid, why)
        for rank in list(self._questions):
            self._answer(rank, found=False)

    def _own_lost(self, why: str) -> None:
        """Handle the loss of the current cycle's store, which is this launcher's."""
        self._lost.add(self.endpoint)
        self._own = ""
        self._events.append(HostedStoreLost(f"the store of in-process restart at {self.endpoint} {why}"))

    def _answer(self, rank: int, *, found: bool) -> None:
        if question := self._questions.pop(rank, None):
            self._events.append(RoundAnswer(question.cycle, rank, found))
