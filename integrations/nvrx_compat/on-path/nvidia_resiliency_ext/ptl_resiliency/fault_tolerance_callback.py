"""nvrx's `FaultToleranceCallback`."""

from nvrx_lightning import FaultToleranceCallback, SimulatedFaultParams

__all__ = ["FaultToleranceCallback", "SimulatedFaultParams"]
