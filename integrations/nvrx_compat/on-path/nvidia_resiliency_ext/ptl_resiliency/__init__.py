"""nvrx's Lightning callbacks; Lightning is imported when one is asked for."""

from typing import Any

import nvrx_lightning

__all__ = ["FaultToleranceCallback", "FaultToleranceSectionsCallback", "SimulatedFaultParams"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(nvrx_lightning, name)
