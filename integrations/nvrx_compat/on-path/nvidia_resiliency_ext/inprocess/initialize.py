"""nvrx's `inprocess.initialize`."""

from nvrx_core.inprocess.initialize import Initialize, RetryController

__all__ = ["Initialize", "RetryController"]
