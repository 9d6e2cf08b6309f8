"""Injection of one fault, immediately or after a delay, by nvrx's names or by those of nvidia-resiliency-ext."""

from __future__ import annotations

import signal
import threading
from typing import Final

from nvrx_core.testing.faults import Call, FaultKind, Stamp, Store, inject, raise_on_signal

__all__ = ["KNOWN_AS", "inject_fault"]

KNOWN_AS: Final = {
    "GPU_ERROR": FaultKind.GPU_ERROR,
    "GPU_SLEEP": FaultKind.GPU_SLEEP,
    "WORKLOAD_EXC": FaultKind.EXCEPTION,
    "ASYNC_EXC": FaultKind.ASYNC_EXCEPTION,
    "SIGNAL_EXC": FaultKind.SIGNAL_EXCEPTION,
    "OS_ABORT": FaultKind.ABORT,
    "LOCK_GIL": FaultKind.GIL_HELD,
    "SEGFAULT": FaultKind.SEGV,
    "SIGINT": FaultKind.INT,
    "SIGKILL": FaultKind.KILL,
    "SIGTERM": FaultKind.TERM,
    "SIGSTOP": FaultKind.STOP,
}
"""The kinds of fault that nvidia-resiliency-ext injects, by its names."""
_FROM_A_THREAD: Final = frozenset(
    {
        FaultKind.KILL,
        FaultKind.TERM,
        FaultKind.INT,
        FaultKind.STOP,
        FaultKind.SEGV,
        FaultKind.ABORT,
        FaultKind.OS_EXIT_0,
        FaultKind.GIL_HELD,
        FaultKind.GIL_LOCKED,
        FaultKind.ASYNC_EXCEPTION,
        FaultKind.SIGNAL_EXCEPTION,
        FaultKind.THREAD_EXCEPTION,
        FaultKind.MONITOR_KILL,
        FaultKind.MONITOR_STOP,
        FaultKind.GPU_ERROR,
        FaultKind.GPU_SLEEP,
    }
)


def inject_fault(
    fault: FaultKind | str,
    *,
    delay: float = 0.0,
    stamp: Stamp | None = None,
    call: Call | None = None,
    store: Store | None = None,
) -> threading.Timer | None:
    """Inject a fault into this process, immediately or after a delay.

    Args:
        fault: a `FaultKind`, its value, or one of the names in `KNOWN_AS`.
        delay: seconds until the injection, which then happens in a separate thread; 0 injects in the calling thread.
        stamp: as for `inject`.
        call: as for `inject`.
        store: as for `inject`.

    Returns:
        With a delay the running timer, which can be cancelled; else None, if the kind returns at all.

    Raises:
        ValueError: when the kind is unknown, lacks an argument, or has a delay but needs the calling thread.
    """
    kind = KNOWN_AS[fault] if isinstance(fault, str) and fault in KNOWN_AS else FaultKind(fault)
    if delay <= 0:
        inject(kind, stamp=stamp, call=call, store=store)
        return None
    if kind not in _FROM_A_THREAD:
        raise ValueError(
            f"{kind.value} is injected into the thread that calls; with a delay, use {FaultKind.ASYNC_EXCEPTION.value}"
        )
    if kind is FaultKind.SIGNAL_EXCEPTION:
        raise_on_signal(signal.SIGUSR1)
    timer = threading.Timer(delay, inject, [kind], {"stamp": stamp, "call": call, "store": store})
    timer.daemon = True
    timer.start()
    return timer
