"""nvrx's `FaultToleranceSectionsCallback`."""

from nvidia_resiliency_ext.ptl_resiliency import FaultToleranceSectionsCallback

__all__ = ["FaultToleranceSectionsCallback"]
