"""nvrx's `inprocess.finalize`."""

from nvrx_core.inprocess.finalize import Finalize, ThreadedFinalize

__all__ = ["Finalize", "ThreadedFinalize"]
