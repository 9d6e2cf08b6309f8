"""nvrx's progress watchdog without a wrapper; a wrapper's watchdog is `CallWrapper.progress_watchdog`."""

from nvrx_core.process.watchdog import ProgressWatchdog, Timestamp

__all__ = ["ProgressWatchdog", "Timestamp"]
