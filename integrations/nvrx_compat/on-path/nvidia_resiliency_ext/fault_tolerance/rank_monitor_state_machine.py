"""nvrx's state machine of a rank monitor."""

from nvrx_core.fault_tolerance.data import InvalidStateTransitionException
from nvrx_core.fault_tolerance.states import RankMonitorState, RankMonitorStateMachine

__all__ = ["InvalidStateTransitionException", "RankMonitorState", "RankMonitorStateMachine"]
