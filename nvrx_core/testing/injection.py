"""Injecting one fault at once or after a while, by our names or by those of nvidia-resiliency-ext."""

from __future__ import annotations

import signal
import threading
from typing import Final

from nvrx_core.testing.faults import Call, Fault, Stamp, Store, raise_on_signal, strike

__all__ = ["KNOWN_AS", "inject_fault"]

KNOWN_AS: Final = {
    "GPU_ERROR": Fault.GPU_ERROR,
    "GPU_SLEEP": Fault.GPU_SLEEP,
    "WORKLOAD_EXC": Fault.EXCEPTION,
    "ASYNC_EXC": Fault.ASYNC_EXCEPTION,
    "SIGNAL_EXC": Fault.SIGNAL_EXCEPTION,
    "OS_ABORT": Fault.ABORT,
    "LOCK_GIL": Fault.GIL_HELD,
    "SEGFAULT": Fault.SEGV,
    "SIGINT": Fault.INT,
    "SIGKILL": Fault.KILL,
    "SIGTERM": Fault.TERM,
    "SIGSTOP": Fault.STOP,
}
"""The kinds of fault that nvidia-resiliency-ext injects, by its names."""
_FROM_A_THREAD: Final = frozenset({
    Fault.KILL, Fault.TERM, Fault.INT, Fault.STOP, Fault.SEGV, Fault.ABORT, Fault.OS_EXIT_0, Fault.GIL_HELD,
    Fault.GIL_LOCKED, Fault.ASYNC_EXCEPTION, Fault.SIGNAL_EXCEPTION, Fault.THREAD_EXCEPTION, Fault.MONITOR_KILL,
    Fault.MONITOR_STOP, Fault.GPU_ERROR, Fault.GPU_SLEEP,
})  # fmt: skip


def inject_fault(
    fault: Fault | str,
    *,
    delay: float = 0.0,
    stamp: Stamp | None = None,
    call: Call | None = None,
    store: Store | None = None,
) -> threading.Timer | None:
    """Breaks this process, now or in a while.

    Args:
        fault: a `Fault`, its value, or one of the names in `KNOWN_AS`.
        delay: seconds until it strikes, from a thread of its own; 0 strikes here and now.
        stamp: as for `strike`.
        call: likewise.
        store: likewise.

    Returns:
        With a delay the running timer, which can be cancelled; else None, if the kind returns at all.

    Raises:
        ValueError: the kind is unknown, lacks what it needs, or with a delay is one of the calling thread only.
    """
    kind = KNOWN_AS[fault] if isinstance(fault, str) and fault in KNOWN_AS else Fault(fault)
    if delay <= 0:
        strike(kind, stamp=stamp, call=call, store=store)
        return None
    if kind not in _FROM_A_THREAD:
        raise ValueError(
            f"{kind.value} strikes the thread that calls; with a delay there is {Fault.ASYNC_EXCEPTION.value}"
        )
    if kind is Fault.SIGNAL_EXCEPTION:
        raise_on_signal(signal.SIGUSR1)
    timer = threading.Timer(delay, strike, [kind], {"stamp": stamp, "call": call, "store": store})
    timer.daemon = True
    timer.start()
    return timer
