"""nvrx's `FaultToleranceCallback`."""

from nvidia_resiliency_ext.ptl_resiliency import FaultToleranceCallback

__all__ = ["FaultToleranceCallback"]
