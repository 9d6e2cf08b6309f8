"""nvrx's values of rank monitors."""

from nvrx_core.fault_tolerance.data import (
    HeartbeatTimeouts,
    InvalidStateTransitionException,
    RankInfo,
    RankMonitorClientError,
    SectionTimeouts,
    WorkloadAction,
    WorkloadControlRequest,
)

__all__ = [
    "HeartbeatTimeouts",
    "InvalidStateTransitionException",
    "RankInfo",
    "RankMonitorClientError",
    "SectionTimeouts",
    "WorkloadAction",
    "WorkloadControlRequest",
]
