"""nvrx's `inprocess.compose`."""

from nvrx_core.inprocess.compose import Compose

__all__ = ["Compose"]
