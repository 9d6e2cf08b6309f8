"""Observation and termination of a process through its pidfd: a pid may be reused, a pidfd never is."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from nvrx_core.process.libc import libc
from nvrx_core.process.proc import read_stat, read_text, read_wchan
from nvrx_core.process.signals import signal_name

__all__ = [
    "ParentDeathSignal", "catches", "describe_exit", "exit_code", "exit_status", "is_running", "is_stopped",
    "open_pidfd", "send", "survivor",
]  # fmt: skip

PR_SET_PDEATHSIG: Final = 1
PIDFD_GET_INFO: Final = 0xC040FF0B  # _IOWR(0xFF, 11, struct pidfd_info)
PIDFD_INFO_EXIT: Final = 1 << 3
_PIDFD_INFO: Final = struct.Struct("=QQ11Ii")
"""`struct pidfd_info` in its first version, 64 bytes: the mask first, the exit code last."""


class ParentDeathSignal:
    """A request to kill a child by SIGKILL when the thread that forked it exits; created before the fork.

    Args:
        parent: the process of that thread.
    """

    def __init__(self, parent: int) -> None:
        self.parent = parent
        libc()  # not in the child: a thread that the child lacks may hold the loader's lock

    def set(self) -> None:
        """Set the signal in the child, see PR_SET_PDEATHSIG(2const).

        Raises:
            OSError: when the kernel refuses.
        """
        if libc().prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)):
            error = ctypes.get_errno()
            raise OSError(error, f"PR_SET_PDEATHSIG: {os.strerror(error)}")
        if os.getppid() != self.parent:  # the parent exited before the call
            os.kill(os.getpid(), signal.SIGKILL)


def open_pidfd(pid: int) -> int:
    """Return a descriptor that becomes readable when the process exits.

    Raises:
        ProcessLookupError: when there is no such process.
    """
    return os.pidfd_open(pid)


def is_running(pid: int) -> bool:
    """Return whether the process exists and has not exited."""
    stat = read_stat(pid)
    return stat is not None and stat.state not in ("Z", "X")


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped the process; a process stopped by a debugger does not count."""
    stat = read_stat(pid)
    return stat is not None and stat.state == "T"


def send(pidfd: int, signals: Sequence[int]) -> None:
    """Send signals to the process in order; do nothing when it has exited.

    A real-time signal is lost while its user has more pending signals than `ulimit -i` allows.
    """
    for signum in signals:
        with suppress(ProcessLookupError, BlockingIOError):
            signal.pidfd_send_signal(pidfd, signum)


def catches(pid: int, signum: int) -> bool:
    """Return whether the process has installed a handler for the signal: `SigCgt` of /proc/<pid>/status (proc(5))."""
    status = read_text(f"/proc/{pid}/status").splitlines()
    mask = next((line.split()[1] for line in status if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (signum - 1) & 1)


def exit_status(pid: int, pidfd: int) -> int | None:
    """Return the wait status of a process that exits, whoever has started it; None if the kernel does not tell.

    A zombie has it in /proc, and its pidfd has it once the process is reaped, from Linux 6.15 on. On an older kernel it
    is lost when the parent reaps the process first.
    """
    status = _status_of_reaped(pidfd)
    if status is None:
        status = _status_of_zombie(pid)
    return _status_of_reaped(pidfd) if status is None else status


def describe_exit(status: int | None) -> str:
    """Describe an exit for people."""
    if status is None:
        return "ended"
    if os.WIFSIGNALED(status):
        return f"ended by {signal_name(os.WTERMSIG(status))}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"


def exit_code(status: int | None) -> int:
    """Return the exit code, 128 + n for signal n; 0 if it is not known."""
    if status is None:
        return 0
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _status_of_zombie(pid: int) -> int | None:
    """Return the wait status in /proc, which the kernel sets before it releases the memory and the locks."""
    stat = read_stat(pid)
    return None if stat is None or stat.exit_status < 0 else stat.exit_status


def _status_of_reaped(pidfd: int) -> int | None:
    """Return the exit code of the kernel's `struct pidfd_info` (linux/pidfd.h)."""
    info = bytearray(_PIDFD_INFO.pack(PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = _PIDFD_INFO.unpack(info)
    return status if mask & PIDFD_INFO_EXIT else None


def survivor(pid: int) -> str:
    """Return a sentence about a process that survives SIGKILL, with the state of the thread that keeps it."""
    states = dict[str, int]()
    with suppress(OSError):
        for task in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
            if (stat := read_stat(pid, task)) is not None:
                states.setdefault(stat.state, task)
    state = next((each for each in ("D", "T", "R", "S") if each in states), next(iter(states), "unknown"))
    where = read_wchan(pid, states[state]) if state in states else ""
    return f"pid {pid} survives SIGKILL (state {state}{f', in {where}' if where else ''})"
