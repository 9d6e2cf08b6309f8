"""nvrx's `inprocess.monitor_thread`."""

from nvrx_compat.raising import async_raise, reraise_if_unraisable

from nvrx_core.inprocess.monitor_thread import MonitorThread, RankShouldRestart

__all__ = ["MonitorThread", "RankShouldRestart", "async_raise", "reraise_if_unraisable"]
