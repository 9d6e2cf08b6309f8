"""The exceptions of the in-process restart, under the names that users import."""

from nvrx_core.errors import (
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
    "BarrierError", "BarrierOverflow", "BarrierTimeout", "FaultCounterExceeded", "HealthCheckError", "InternalError",
    "JobMismatch", "PeerExited", "RankAssignmentError", "RankDiscarded", "RestartAbort", "RestartError", "StoreLost",
    "TimeoutError",
]  # fmt: skip
