"""nvrx's Lightning callbacks; Lightning is imported on first access."""

from typing import TYPE_CHECKING, Any

import nvrx_lightning
from nvrx_compat.absent import StragglerDetectionCallback as StragglerDetectionCallback

if TYPE_CHECKING:
    from nvrx_lightning import FaultToleranceCallback, FaultToleranceSectionsCallback, SimulatedFaultParams

__all__ = ["FaultToleranceCallback", "FaultToleranceSectionsCallback", "SimulatedFaultParams"]


if not TYPE_CHECKING:  # checkers see the names above, and refuse any other

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(nvrx_lightning, name)
