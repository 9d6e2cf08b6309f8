"""nvrx's Lightning callbacks; Lightning is imported on first access."""

from typing import Any

import nvrx_lightning

__all__ = ["FaultToleranceCallback", "FaultToleranceSectionsCallback", "SimulatedFaultParams"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(nvrx_lightning, name)
