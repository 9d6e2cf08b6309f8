"""nvrx's `inprocess.completion`."""

from nvrx_core.inprocess.completion import Completion

__all__ = ["Completion"]
