"""The kinds of fault that `nvrx_core.testing.faults.inject` knows, and their names in a schedule's text."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Delay", "FaultKind", "InjectedFault", "Kind", "kind_of"]


class FaultKind(enum.Enum):
    """The kinds of fault. The value is the name used in a schedule's text."""

    EXCEPTION = "exception"
    """An Exception leaves the function."""
    KEYBOARD_INTERRUPT = "keyboard_interrupt"
    """A BaseException leaves the function."""
    EXIT_0 = "exit_0"
    """`sys.exit(0)`: an early, orderly end."""
    EXIT_3 = "exit_3"
    """`sys.exit(3)`: an end that reports failure."""
    OS_EXIT_0 = "os_exit_0"
    """The process is gone with code 0, no clean-up runs."""
    KILL = "kill"
    """SIGKILL."""
    TERM = "term"
    """SIGTERM."""
    SEGV = "segv"
    """A real access to an unmapped address."""
    ABORT = "abort"
    """SIGABRT from C."""
    STOP = "stop"
    """SIGSTOP: the process lives and does nothing."""
    HANG_SLEEP = "hang_sleep"
    """Blocked in time.sleep."""
    HANG_LOCK = "hang_lock"
    """Blocked on a lock that nobody releases."""
    HANG_RECV = "hang_recv"
    """Blocked in recv on a socket whose other end stays silent."""
    HANG_GLOO = "hang_gloo"
    """Blocked in a process group's recv; the peer never sends."""
    HANG_STORE = "hang_store"
    """Blocked in a store's get of a key that nobody sets."""
    HANG_ATOMIC = "hang_atomic"
    """Blocked inside an atomic section."""
    LIVELOCK = "livelock"
    """One ping, then busy for ever without another."""
    STAGNATION = "stagnation"
    """Pings for ever, while the step counter stands still."""
    GIL_HELD = "gil_held"
    """Blocked in C with the GIL held; the call returns on a signal."""
    GIL_LOCKED = "gil_locked"
    """The same in a call that no signal ends: only a kill helps."""
    SWALLOW = "swallow"
    """Hangs, and catches BaseException three times before it lets one out."""
    SWALLOW_ALL = "swallow_all"
    """Hangs, and catches every BaseException."""
    INT = "int"
    """SIGINT."""
    MEMORY_ERROR = "memory_error"
    """An allocation that no machine can serve."""
    ASYNC_EXCEPTION = "async_exception"
    """An Exception comes up in the main thread, from outside of its code."""
    SIGNAL_EXCEPTION = "signal_exception"
    """A handler of SIGUSR1 raises an Exception in the main thread."""
    THREAD_EXCEPTION = "thread_exception"
    """An Exception ends another thread; the caller goes on."""
    MONITOR_KILL = "monitor_kill"
    """SIGKILL to this rank's monitor process; the caller goes on."""
    MONITOR_STOP = "monitor_stop"
    """SIGSTOP to this rank's monitor process; the caller goes on."""
    GPU_ERROR = "gpu_error"
    """An assertion fails in a CUDA kernel; no later CUDA call of the process works."""
    GPU_SLEEP = "gpu_sleep"
    """Blocked in cudaDeviceSynchronize, behind a kernel that does not end."""


@dataclass(frozen=True)
class Delay:
    """Not a fault: the caller is late by so many seconds."""

    seconds: float

    @property
    def value(self) -> str:
        """The name used in a schedule's text."""
        return f"delay:{self.seconds:g}"


Kind = FaultKind | Delay
"""What may be injected."""


def kind_of(text: str) -> Kind:
    """The kind that a schedule's text names.

    Raises:
        ValueError: there is none of that name.
    """
    name, _, seconds = text.partition(":")
    return Delay(float(seconds)) if name == "delay" and seconds else FaultKind(text)


class InjectedFault(RuntimeError):
    """The exception that kinds which raise one raise, and those that come to an end although they should not."""
