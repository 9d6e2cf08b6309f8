"""nvrx's `fault_tolerance`. Its modules, except the launcher, are attributes of the package."""

from nvidia_resiliency_ext.fault_tolerance import (
    config,
    data,
    rank_monitor_client,
    rank_monitor_server,
    rank_monitor_state_machine,
    utils,
)
from nvrx_core.fault_tolerance.client import RankMonitorClient
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.fault_tolerance.data import (
    InvalidStateTransitionException,
    RankMonitorClientError,
    WorkloadAction,
    WorkloadControlRequest,
)
from nvrx_core.fault_tolerance.server import RankMonitorServer
from nvrx_core.fault_tolerance.states import RankMonitorState, RankMonitorStateMachine

__all__ = [
    "FaultToleranceConfig",
    "InvalidStateTransitionException",
    "RankMonitorClient",
    "RankMonitorClientError",
    "RankMonitorServer",
    "RankMonitorState",
    "RankMonitorStateMachine",
    "WorkloadAction",
    "WorkloadControlRequest",
    "config",
    "data",
    "rank_monitor_client",
    "rank_monitor_server",
    "rank_monitor_state_machine",
    "utils",
]
