"""Standby workers: one process per local rank that has imported torch and becomes a worker on request."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from nvrx_core.process.children import end_child, watch_child
from nvrx_core.process.memory import available_bytes
from nvrx_core.process.waiting import readable
from nvrx_launcher.guardian import start_guarded
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.binding import Binding
from nvrx_launcher.workers.command import program_arguments, worker_target
from nvrx_launcher.workers.environment import import_environment, without_place
from nvrx_launcher.workers.standby_policy import BYTES_OF_A_WORKER, StandbyPolicy
from nvrx_launcher.workers.starting import PROGRAM, Starter
from nvrx_launcher.workers.worker import Output, Worker

__all__ = ["Standbys", "WarmStarter"]

log = logging.getLogger("nvrx_launcher")
REAP_TIMEOUT: Final = 2.0
"""Seconds from the SIGKILL of a standby to its end, usually."""


class Standby:
    """One standby, with its output during the imports.

    Args:
        command: its program.
        environment: its environment during the imports.
        binding: the CPUs and memory that it is bound to.

    Attributes:
        is_ready: its imports are done.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], binding: Binding | None) -> None:
        self.environment, self.is_ready = environment, False
        self.control, theirs = socket.socketpair()
        self._printed = list[int]()
        python, *arguments = command
        with theirs, ExitStack() as failing:
            failing.callback(self._forget_streams)
            self._printed += (os.memfd_create("stdout"), os.memfd_create("stderr"))
            self._process = start_guarded(
                [python, "-u", PROGRAM, str(theirs.fileno()), *arguments],
                bind=None if binding is None else binding.apply, env=dict(environment),
                stdout=self._printed[0], stderr=self._printed[1], pass_fds=[theirs.fileno()],
            )  # fmt: skip
            self._pidfd = watch_child(self._process)
            failing.pop_all()

    def become(self, local_rank: int, rank: int, environment: Mapping[str, str], output: Output) -> Worker | None:
        """Make it run the script, and return the worker; None if it has exited.

        Args:
            local_rank: its number on this node.
            rank: its number in the job.
            environment: the worker's whole environment.
            output: the worker's streams.
        """
        if readable([self._pidfd], 0.0):
            return None
        with os.fdopen(os.memfd_create("environment"), "w", encoding="utf-8") as file:
            json.dump(dict(environment), file)
            file.flush()
            file.seek(0)
            try:
                socket.send_fds(self.control, [b"a"], [file.fileno(), *output.descriptors()])
            except OSError:
                return None
        self._forget_streams()
        return Worker(local_rank, rank, self._process.pid, ended=self._pidfd, wait=self._process.wait)

    def last_error_line(self) -> str:
        """Return the last line of its stderr."""
        size = os.fstat(self._printed[1]).st_size
        text = os.pread(self._printed[1], 4096, max(0, size - 4096)).decode(errors="replace")
        return text.strip().rpartition("\n")[2]

    def close(self) -> None:
        """Kill it."""
        end_child(self._process, REAP_TIMEOUT)
        os.close(self._pidfd)
        self._forget_streams()

    def _forget_streams(self) -> None:
        self.control.close()
        for fd in self._printed:
            os.close(fd)


class Standbys:
    """The standbys of a node.

    Args:
        options: the command line of the job.
        python: the interpreter.
        imports: modules that they import.
        loop: the event loop that watches them.
        bound: the binding of each local rank.
        needs_memory: start them only while there is enough free memory.
        exits: an exception ends the worker that one has become at once.
        why_none: why there are none, and none are started; "" if there are any.
    """

    def __init__(
        self, options: LaunchOptions, python: str, imports: str, *,
        loop: EventLoop, bound: Sequence[Binding | None], needs_memory: bool, exits: bool, why_none: str,
    ) -> None:  # fmt: skip
        self._command = [python, *program_arguments(options, exits=exits), imports]
        self._options, self._loop, self._bound, self._needs_memory = options, loop, bound, needs_memory
        self._standbys = dict[int, Standby]()
        self._environment: Callable[[int], Mapping[str, str]] = lambda _: {}
        self._policy, self._has_said_so = StandbyPolicy(options.workers, why_none), False

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return self._policy.deadline

    def settle(self, environment: Callable[[int], Mapping[str, str]]) -> None:
        """Schedule the start of missing standbys.

        Args:
            environment: by local rank, the environment that a worker inherits.
        """
        self._environment = environment
        self._policy.settle(now=time.monotonic())

    def pause(self) -> None:
        """Start no standbys until `settle`."""
        self._policy.pause()

    def tick(self, *, now: float) -> None:
        """Start the next standby if it is due."""
        if now >= self._policy.deadline:
            for action in self._policy.tick(now=now, has_room=self._has_room()):
                log.debug("start a standby worker: %s", action.reason)
                self._start(action.local_rank)

    def take(self, local_rank: int, rank: int, environment: Mapping[str, str], output: Output) -> Worker | None:
        """Turn the standby of a local rank into a worker, and return it; None if no standby is ready."""
        standby = self._standbys.get(local_rank)
        if standby is None or not standby.is_ready:
            return None
        self._loop.forget(standby.control.fileno())
        del self._standbys[local_rank]
        changed = without_place(environment).items() ^ without_place(standby.environment).items()
        if changed:
            names = ", ".join(sorted({name for name, _ in changed}))
            log.warning(
                "the standby worker for local rank %d is not used: it has imported before %s changed", local_rank, names
            )
        worker = None if changed else standby.become(local_rank, rank, environment, output)
        if worker is None:
            standby.close()
        self._policy.taken(local_rank, runs=worker is not None)
        return worker

    def close(self) -> None:
        """Kill all standbys."""
        for standby in self._standbys.values():
            self._loop.forget(standby.control.fileno())
            standby.close()
        self._standbys.clear()

    def _has_room(self) -> bool:
        needed, free = self._options.workers * BYTES_OF_A_WORKER, available_bytes()
        if not self._needs_memory or free >= needed:
            return True
        if not self._has_said_so:
            log.info("no standby workers as long as less than %d GiB are free: %d GiB are", needed >> 30, free >> 30)
            self._has_said_so = True
        return False

    def _start(self, local_rank: int) -> None:
        options, inherited = self._options, self._environment(local_rank)
        environment = {**inherited, **import_environment(options, local_rank, inherited)}
        target = worker_target(options, local_rank)
        try:
            standby = Standby([*self._command, *target], environment, self._bound[local_rank])
        except OSError as error:
            self._policy.lost(local_rank, str(error), now=time.monotonic())
            return
        self._standbys[local_rank] = standby
        self._loop.watch(standby.control.fileno(), lambda: self._hear(local_rank))

    def _hear(self, local_rank: int) -> None:
        """Handle that a standby is ready, or has exited."""
        standby = self._standbys[local_rank]
        said = b""
        with suppress(OSError):
            said = standby.control.recv(1)
        if said:
            standby.is_ready = True
            self._policy.ready(local_rank, now=time.monotonic())
            log.debug("a standby worker for local rank %d is ready", local_rank)
            return
        why = standby.last_error_line() or "it was ended"
        self._loop.forget(standby.control.fileno())
        self._standbys.pop(local_rank).close()
        self._policy.lost(local_rank, why, now=time.monotonic())
        if self._policy.reason:
            log.warning("no standby workers: %s", self._policy.reason)


class WarmStarter:
    """Starts a worker from a standby if there is one, else from scratch.

    Args:
        standbys: the standbys of the node.
        cold: starts a worker from scratch.
    """

    def __init__(self, standbys: Standbys, cold: Starter) -> None:
        self._standbys, self._cold = standbys, cold

    def start(self, local_rank: int, rank: int, variables: Mapping[str, str], output: Output) -> Worker:
        """Start a worker."""
        taken = self._standbys.take(local_rank, rank, variables, output)
        return taken or self._cold.start(local_rank, rank, variables, output)
