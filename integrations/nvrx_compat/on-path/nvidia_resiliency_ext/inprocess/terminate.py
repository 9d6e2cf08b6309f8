"""nvrx's `inprocess.terminate`."""

from nvrx_core.inprocess.terminate import Terminate

__all__ = ["Terminate"]
