"""nvrx's `inprocess.health_check`."""

from nvrx_core.inprocess.health_check import (
    ChainedGPUHealthCheck,
    ChainedNicHealthCheck,
    ChainedNVLHealthCheck,
    CudaHealthCheck,
    FaultCounter,
    FaultCounterExceeded,
    HealthCheck,
)

__all__ = [
    "ChainedGPUHealthCheck",
    "ChainedNVLHealthCheck",
    "ChainedNicHealthCheck",
    "CudaHealthCheck",
    "FaultCounter",
    "FaultCounterExceeded",
    "HealthCheck",
]
