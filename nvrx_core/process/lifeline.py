"""Observation and termination of a process through its pidfd: a pid may be reused, a pidfd never is."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from nvrx_core.process.signal_names import signal_name

__all__ = ["ParentDeathSignal", "catches", "describe_exit", "is_running", "is_stopped", "open_pidfd", "send"]

PR_SET_PDEATHSIG: Final = 1


class ParentDeathSignal:
    """A request to kill a child by SIGKILL when the thread that forked it exits; created before the fork.

    Args:
        parent: the process of that thread.
    """

    def __init__(self, parent: int) -> None:
        self.parent = parent
        _libc()  # not in the child: a thread that the child lacks may hold the loader's lock

    def set(self) -> None:
        """Set the signal in the child, see PR_SET_PDEATHSIG(2const).

        Raises:
            OSError: when the kernel refuses.
        """
        if _libc().prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)):
            error = ctypes.get_errno()
            raise OSError(error, f"PR_SET_PDEATHSIG: {os.strerror(error)}")
        if os.getppid() != self.parent:  # the parent exited before the call
            os.kill(os.getpid(), signal.SIGKILL)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def open_pidfd(pid: int) -> int:
    """Return a descriptor that becomes readable when the process exits.

    Raises:
        ProcessLookupError: when there is no such process.
    """
    return os.pidfd_open(pid)


def is_running(pid: int) -> bool:
    """Return whether the process exists and has not exited."""
    return _state(pid) not in ("", "Z", "X")


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped the process; a process stopped by a debugger does not count."""
    return _state(pid) == "T"


def _state(pid: int) -> str:
    """Return the state of a process, field 3 of /proc/<pid>/stat (proc(5)); "" when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def send(pidfd: int, signals: Sequence[int]) -> None:
    """Send signals to the process in order; do nothing when it has exited.

    A real-time signal is lost while its user has more pending signals than `ulimit -i` allows.
    """
    for signum in signals:
        with suppress(ProcessLookupError, BlockingIOError):
            signal.pidfd_send_signal(pidfd, signum)


def catches(pid: int, signum: int) -> bool:
    """Return whether the process has installed a handler for the signal: `SigCgt` of /proc/<pid>/status (proc(5))."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (signum - 1) & 1)


def describe_exit(pid: int) -> str:
    """Describe the exit of a process that is not reaped yet, from field 52 of /proc/<pid>/stat."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        status = int(fields[49])
    except (OSError, ValueError, IndexError):
        return "ended"
    if os.WIFSIGNALED(status):
        return f"ended by {signal_name(os.WTERMSIG(status))}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"
