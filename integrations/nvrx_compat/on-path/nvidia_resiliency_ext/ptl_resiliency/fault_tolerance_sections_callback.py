"""nvrx's `FaultToleranceSectionsCallback`."""

from nvrx_lightning import FaultToleranceSectionsCallback, SimulatedFaultParams

__all__ = ["FaultToleranceSectionsCallback", "SimulatedFaultParams"]
