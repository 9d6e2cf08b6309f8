"""nvrx's data types of rank monitors, and the variables with the addresses of a rank's monitor and launcher."""

from nvrx_core.fault_tolerance.data import (
    HeartbeatTimeouts,
    InvalidStateTransitionException,
    RankInfo,
    RankMonitorClientError,
    SectionAction,
    SectionTimeouts,
    WorkloadAction,
    WorkloadControlRequest,
)
from nvrx_core.settings.environment import (
    LAUNCHER_SOCKET as FT_LAUNCHER_IPC_SOCKET_ENV_VAR,
    RANK_MONITOR_SOCKET as FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR,
)

__all__ = [
    "FT_LAUNCHER_IPC_SOCKET_ENV_VAR",
    "FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR",
    "HeartbeatTimeouts",
    "InvalidStateTransitionException",
    "RankInfo",
    "RankMonitorClientError",
    "SectionAction",
    "SectionTimeouts",
    "WorkloadAction",
    "WorkloadControlRequest",
]
