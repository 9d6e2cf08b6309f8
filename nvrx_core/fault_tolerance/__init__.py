"""Rank monitors: a process beside each rank that ends it when it is hung. Names are imported on first access."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvrx_core.fault_tolerance.client import RankMonitorClient
    from nvrx_core.fault_tolerance.config import FaultToleranceConfig
    from nvrx_core.fault_tolerance.data import (
        HeartbeatTimeouts,
        InvalidStateTransitionException,
        RankInfo,
        RankMonitorClientError,
        SectionTimeouts,
        WorkloadAction,
        WorkloadControlRequest,
    )
    from nvrx_core.fault_tolerance.local import start_local_monitor
    from nvrx_core.fault_tolerance.server import RankMonitorServer
    from nvrx_core.fault_tolerance.states import RankMonitorState, RankMonitorStateMachine

__all__ = [
    "FaultToleranceConfig",
    "HeartbeatTimeouts",
    "InvalidStateTransitionException",
    "RankInfo",
    "RankMonitorClient",
    "RankMonitorClientError",
    "RankMonitorServer",
    "RankMonitorState",
    "RankMonitorStateMachine",
    "SectionTimeouts",
    "WorkloadAction",
    "WorkloadControlRequest",
    "start_local_monitor",
]

_MODULES = {
    "client": ("RankMonitorClient",),
    "config": ("FaultToleranceConfig",),
    "data": (
        "HeartbeatTimeouts", "InvalidStateTransitionException", "RankInfo", "RankMonitorClientError", "SectionTimeouts",
        "WorkloadAction", "WorkloadControlRequest",
    ),
    "local": ("start_local_monitor",),
    "server": ("RankMonitorServer",),
    "states": ("RankMonitorState", "RankMonitorStateMachine"),
}  # fmt: skip
_HOME = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # checkers see the names above, and refuse any other

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
