"""nvrx's progress watchdog without a wrapper; that of a wrapper is `CallWrapper.progress_watchdog`."""

from nvrx_core.process.watchdog import ProgressWatchdog, Timestamp

__all__ = ["ProgressWatchdog", "Timestamp"]
