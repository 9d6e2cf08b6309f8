"""nvrx's settings of rank monitors and of the launcher."""

from nvrx_core.fault_tolerance.config import FaultToleranceConfig

__all__ = ["FaultToleranceConfig"]
