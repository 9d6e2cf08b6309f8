"""nvrx's `inprocess.exception`."""

from nvrx_core.inprocess.exception import (
    BarrierError,
    BarrierOverflow,
    BarrierTimeout,
    FaultCounterExceeded,
    HealthCheckError,
    InternalError,
    JobMismatch,
    PeerExited,
    RankAssignmentError,
    RankDiscarded,
    RestartAbort,
    RestartError,
    StoreLost,
    TimeoutError,
)

__all__ = [
    "BarrierError",
    "BarrierOverflow",
    "BarrierTimeout",
    "FaultCounterExceeded",
    "HealthCheckError",
    "InternalError",
    "JobMismatch",
    "PeerExited",
    "RankAssignmentError",
    "RankDiscarded",
    "RestartAbort",
    "RestartError",
    "StoreLost",
    "TimeoutError",
]
