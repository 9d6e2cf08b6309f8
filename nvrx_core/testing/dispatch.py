"""Faults that a job dispatches to itself, by the names of nvidia-resiliency-ext.

Most faults are injected from a thread, or by a signal. An exception of the workload cannot be: it becomes due, and the
training loop raises it by `maybe_raise_workload_exception`.
"""

from __future__ import annotations

import enum
import functools
import signal
import threading
from collections.abc import Callable
from typing import Final

from nvrx_core.testing.faults import FaultKind, InjectedFault, inject, raise_on_signal
from nvrx_core.testing.injection import KNOWN_AS
from nvrx_core.testing.injectors import Target

__all__ = ["Fault", "clear_workload_exception", "dispatch_fault_injection", "maybe_raise_workload_exception"]

_due: Final = threading.Event()


class Fault(enum.Enum):
    """The faults that nvidia-resiliency-ext injects."""

    GPU_ERROR = enum.auto()
    GPU_SLEEP = enum.auto()
    WORKLOAD_EXC = enum.auto()
    ASYNC_EXC = enum.auto()
    SIGNAL_EXC = enum.auto()
    OS_ABORT = enum.auto()
    LOCK_GIL = enum.auto()
    SEGFAULT = enum.auto()
    SIGINT = enum.auto()
    SIGKILL = enum.auto()
    SIGTERM = enum.auto()
    SIGSTOP = enum.auto()


def dispatch_fault_injection(
    fault: Fault, delay: float, callback: Callable[[], object] | None = None
) -> threading.Timer:
    """Inject a fault into this process after a delay, from another thread.

    Args:
        fault: the fault. WORKLOAD_EXC is due then, for `maybe_raise_workload_exception`; SIGNAL_EXC is dispatched in
            the main thread.
        delay: seconds.
        callback: called a moment before the fault.

    Returns:
        The running timer, which can be cancelled.

    Raises:
        ValueError: when the fault needs a CUDA device and there is none.
    """
    kind = KNOWN_AS[fault.name]
    Target(None, None).check(kind)
    if kind is FaultKind.SIGNAL_EXCEPTION:
        raise_on_signal(signal.SIGUSR1)
    inject_now = _due.set if kind is FaultKind.EXCEPTION else functools.partial(inject, kind)
    timer = threading.Timer(delay, _inject_due, [inject_now, callback])
    timer.daemon = True
    timer.start()
    return timer


def maybe_raise_workload_exception() -> None:
    """Raise the workload's exception if it is due, once.

    Raises:
        InjectedFault: when it is.
    """
    if _due.is_set():
        _due.clear()
        raise InjectedFault("injected into the workload")


def clear_workload_exception() -> None:
    """Discard a workload exception that is due."""
    _due.clear()


def _inject_due(inject_now: Callable[[], object], callback: Callable[[], object] | None) -> None:
    if callback is not None:
        callback()
    inject_now()
