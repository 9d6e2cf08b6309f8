"""nvrx's client of a rank monitor."""

from nvrx_core.fault_tolerance.client import RankMonitorClient
from nvrx_core.fault_tolerance.data import RankMonitorClientError

__all__ = ["RankMonitorClient", "RankMonitorClientError"]
