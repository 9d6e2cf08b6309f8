"""nvrx's `inprocess.state`."""

from nvrx_core.inprocess.state import FrozenState, Mode, State

__all__ = ["FrozenState", "Mode", "State"]
