"""nvrx's `inprocess`. Its modules are attributes of the package, because user code accesses them that way."""

from nvidia_resiliency_ext.inprocess import (
    abort,
    attribution,
    completion,
    compose,
    exception,
    finalize,
    health_check,
    initialize,
    monitor_thread,
    nested_restarter,
    progress_watchdog,
    rank_assignment,
    rank_filter,
    state,
    store,
    terminate,
    tools,
    wrap,
)
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.state import FrozenState, Mode, State
from nvrx_core.inprocess.wrap import CallWrapper, Wrapper

__all__ = [
    "CallWrapper",
    "Compose",
    "FrozenState",
    "Mode",
    "State",
    "Wrapper",
    "abort",
    "attribution",
    "completion",
    "compose",
    "exception",
    "finalize",
    "health_check",
    "initialize",
    "monitor_thread",
    "nested_restarter",
    "progress_watchdog",
    "rank_assignment",
    "rank_filter",
    "state",
    "store",
    "terminate",
    "tools",
    "wrap",
]
