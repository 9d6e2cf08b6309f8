"""nvrx's `inprocess.progress_watchdog`."""

from nvrx_core.inprocess.progress_watchdog import ProgressWatchdog

__all__ = ["ProgressWatchdog"]
