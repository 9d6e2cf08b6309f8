"""nvrx's rank monitors."""

from nvrx_core.fault_tolerance.server import RankMonitorServer

__all__ = ["RankMonitorServer"]
