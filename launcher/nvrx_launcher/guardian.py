"""Guardians: processes that end what a launcher has left when it is killed.

Launcher and guardians watch each other: a guardian waits for the end of the launcher, and the launcher replaces one
that is lost or stopped. There are two, so that one is there when the launcher and the other are killed at once.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from nvrx_core.process.children import end_child, start_child, watch_child
from nvrx_core.process.file_limit import first_file_limit, set_file_limit
from nvrx_core.process.lifeline import ParentDeathSignal, describe_exit, exit_status
from nvrx_launcher import guardian_program
from nvrx_launcher.guardian_policy import AskGuardian, EndGuardian, GuardianPolicy, StartGuardian
from nvrx_launcher.loop import EventLoop

__all__ = ["Guardians", "start_guarded"]

log = logging.getLogger("nvrx_launcher")
PROGRAM: Final = str(Path(guardian_program.__file__).resolve())
COUNT: Final = 2
END_TIMEOUT: Final = 1.0
"""Seconds that a killed guardian is waited for: one that the kernel cannot end must not hold up the launcher's end."""


class _Guardian:
    """One guardian process.

    Attributes:
        pid: its process.
        channel: what it answers on.
        ended: becomes readable when it has ended.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.channel, theirs = socket.socketpair()
        with theirs, ExitStack() as failing:
            failing.callback(self.channel.close)
            command = [sys.executable, "-S", "-P", PROGRAM, str(os.getpid()), str(theirs.fileno()), *arguments]
            self.channel.setblocking(False)
            self._process = start_child(
                command, pass_fds=(theirs.fileno(),), start_new_session=True, stdin=subprocess.DEVNULL
            )
            self.pid, self.ended = self._process.pid, watch_child(self._process)
            failing.pop_all()

    def end(self) -> None:
        """Kill it, unless it has ended."""
        end_child(self._process, END_TIMEOUT)
        os.close(self.ended)
        self.channel.close()


class Guardians:
    """The guardians of a launcher.

    Args:
        loop: the event loop that watches them.
        launch: the name of the launch.
        folder: its runtime folder, which they remove.
        cgroup: the cgroup of the job; None for none.
    """

    def __init__(self, loop: EventLoop, launch: str, folder: Path, *, cgroup: Path | None) -> None:
        self._loop, self._policy = loop, GuardianPolicy(COUNT)
        self._arguments = [launch, str(folder), "" if cgroup is None else str(cgroup)]
        self._guardians = dict[int, _Guardian]()

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return self._policy.deadline

    def start(self) -> None:
        """Start them.

        Raises:
            OSError: when one cannot be started.
        """
        for number in range(COUNT):
            self._start(number)

    def pids(self) -> set[int]:
        """Return their processes."""
        return {each.pid for each in self._guardians.values()}

    def tick(self, *, now: float) -> None:
        """Ask them for a sign of life, and replace those that are lost; `now` is what the loop's turn has returned."""
        if now < self._policy.deadline:
            return
        for action in self._policy.tick(now=now):
            match action:
                case AskGuardian(number):
                    with suppress(OSError):  # its end is another event
                        self._guardians[number].channel.send(b"?")
                case EndGuardian(number, reason):
                    self._lost(number, reason)
                case StartGuardian(number, _):
                    try:
                        self._start(number)
                    except OSError as error:
                        pause = self._policy.lost(number, now=now)
                        log.warning("no guardian process can be started, the next attempt is in %g s: %s", pause, error)

    def close(self) -> None:
        """Kill them."""
        while self._guardians:
            _, guardian = self._guardians.popitem()
            self._forget(guardian)
            guardian.end()

    def _start(self, number: int) -> None:
        guardian = self._guardians[number] = _Guardian(self._arguments)
        self._policy.started(number, now=time.monotonic())
        self._loop.watch(guardian.ended, lambda: self._lost(number, ""))
        self._loop.watch(guardian.channel.fileno(), lambda: self._hear(number, guardian))

    def _hear(self, number: int, guardian: _Guardian) -> None:
        answer = b""
        with suppress(OSError):
            answer = guardian.channel.recv(64)
        if answer:
            self._policy.answered(number, now=time.monotonic())
        else:
            self._loop.forget(guardian.channel.fileno())

    def _lost(self, number: int, reason: str) -> None:
        guardian = self._guardians.pop(number)
        self._forget(guardian)
        why = reason or describe_exit(exit_status(guardian.pid, guardian.ended))
        guardian.end()
        pause = self._policy.lost(number, now=time.monotonic())
        when = f"in {pause:g} s" if pause else "at once"
        log.warning("guardian process %d is lost: %s; another one is started %s", guardian.pid, why, when)

    def _forget(self, guardian: _Guardian) -> None:
        self._loop.forget(guardian.ended)
        self._loop.forget(guardian.channel.fileno())


def start_guarded(
    command: Sequence[str], *, bind: Callable[[], None] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, which the kernel kills when the calling thread has ended.

    Its limit of open files is the one with which the launcher was started.

    Args:
        command: program and arguments.
        bind: called in the child as well: a few system calls.
        options: further ones of `Popen`.

    Raises:
        OSError: when the program cannot be started.
    """
    guard, files = ParentDeathSignal(os.getpid()), first_file_limit()

    def prepare() -> None:
        guard.set()
        set_file_limit(files)
        if bind is not None:
            bind()

    return start_child(command, start_new_session=True, preexec_fn=prepare, **options)  # a few system calls, no lock
