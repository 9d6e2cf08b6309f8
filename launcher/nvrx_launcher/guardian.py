"""Kills the processes that a killed launcher has left behind: `python -m nvrx_launcher.guardian FD TAG`.

The launcher's children carry a parent-death signal (`start_guarded`). What workers have started does not, and may be in
sessions of its own; it has the tag of the launch in its environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from nvrx_core.process.lifeline import ParentDeathSignal
from nvrx_core.process.waiting import readable

__all__ = ["TAG", "start_guarded", "start_guardian", "sweep"]

TAG: Final = "NVRX_LAUNCH_ID"
"""The variable that all processes of a launch have."""
PASSES: Final = 10
"""How often it looks, at most: a process may fork while it is looked for."""


def start_guardian(launch: str) -> int:
    """Start a guardian; return the descriptor whose closing tells it that this process has exited."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    command = [sys.executable, "-m", "nvrx_launcher.guardian", str(reader), launch]
    started = subprocess.Popen(command, pass_fds=(reader,), start_new_session=True, stdin=subprocess.DEVNULL)
    started.returncode = 0  # it outlives this process
    os.close(reader)
    return writer


def start_guarded(
    command: Sequence[str], *, bind: Callable[[], None] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, which the kernel kills when the calling thread has ended.

    Args:
        command: program and arguments.
        bind: called in the child as well: a few system calls.
        options: further ones of `Popen`.

    Raises:
        OSError: when the program cannot be started.
    """
    guard = ParentDeathSignal(os.getpid())

    def prepare() -> None:
        guard.set()
        if bind is not None:
            bind()

    return subprocess.Popen(
        command, start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509 - a few system calls, no lock
        **options,
    )  # fmt: skip


def sweep(launch: str) -> None:
    """Kill all processes of a launch but this one."""
    for _ in range(PASSES):
        found = _tagged(launch)
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _tagged(launch: str) -> list[int]:
    """Return the processes that have the tag, without those that have ended already."""
    mark, found = f"{TAG}={launch}".encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if int(name) != os.getpid() and mark in file.read().split(b"\0"):
                found.append(int(name))
    return found


def main() -> None:
    """Wait for the end of the launcher, and sweep."""
    fd, launch = int(sys.argv[1]), sys.argv[2]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while readable([fd]) and os.read(fd, 1):
        pass
    sweep(launch)


if __name__ == "__main__":
    main()
