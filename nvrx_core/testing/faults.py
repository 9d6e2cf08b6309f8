"""Faults: break this process in a named way.

`inject` breaks the calling process at once; `nvrx_core.testing.schedule` says which rank breaks where. Just before the
fault its moment (monotonic seconds) goes to the `stamp` callback: the latency of a recovery is measured from there,
apart from what the wrapper reports. Nothing is printed, and no fault leaves a core file.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

from nvrx_core.testing.fault_kinds import Delay, FaultKind, InjectedFault, Kind, kind_of
from nvrx_core.testing.injectors import INJECTORS, Call, Store, Target, raise_on_signal, spares_caller

__all__ = [
    "Call",
    "Delay",
    "FaultKind",
    "InjectedFault",
    "Kind",
    "Stamp",
    "Store",
    "inject",
    "kind_of",
    "raise_on_signal",
]

_sleep = time.sleep  # noqa: TID251 - to be late is what is wanted here

Stamp = Callable[[float], object]
"""Is told the monotonic time in seconds, a moment before the fault."""


def inject(
    kind: Kind | str, *, stamp: Stamp | None = None, call: Call | None = None, store: Store | None = None
) -> None:
    """Break this process. Returns for a `Delay` and for kinds that leave the caller alone, else for none.

    Kinds that a signal or an abort can end leave by its exception.

    Args:
        kind: a `FaultKind`, a `Delay`, or the value of one.
        stamp: called with the monotonic time in seconds, immediately before the fault.
        call: the wrapped function's `CallWrapper`; needed by HANG_ATOMIC, LIVELOCK, STAGNATION and MONITOR_*.
        store: the store whose `get` blocks; needed by HANG_STORE.

    Raises:
        ValueError: the kind is unknown, or lacks `call`, `store` or a CUDA device.
        InjectedFault: the kind raises, or came to an end.
    """
    fault, target = kind_of(kind) if isinstance(kind, str) else kind, Target(call, store)
    if isinstance(fault, FaultKind):
        target.check(fault)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if stamp is not None:
        stamp(time.monotonic())
    if isinstance(fault, Delay):
        _sleep(fault.seconds)
        return
    INJECTORS[fault](target)
    if not spares_caller(fault):
        raise InjectedFault(f"{fault.value} came to an end by itself")
