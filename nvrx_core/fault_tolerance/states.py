"""The states of a rank monitor, as named in its log lines.

A rank that connects for the first time initialises the monitor. The loss of a rank starts the handling of a fault, and
the first sign of life of its successor completes it.
"""

from __future__ import annotations

import enum
import logging
from typing import Final

from nvrx_core.fault_tolerance.data import InvalidStateTransitionException

__all__ = ["RankMonitorState", "RankMonitorStateMachine"]

log = logging.getLogger("nvrx_core.fault_tolerance.restarter")


class RankMonitorState(enum.Enum):
    """The state of a rank monitor; the value is its name in the log."""

    UNINITIALIZED = "uninitialized"
    INITIALIZE = "initialize"
    HANDLING_START = "handling stage=starting"
    HANDLING_PROCESSING = "handling stage=processing"
    HANDLING_COMPLETED = "handling stage=completed"
    FINALIZED = "finalized"
    ABORTED = "aborted"


_S: Final = RankMonitorState
_NEXT: Final = {
    _S.UNINITIALIZED: {_S.INITIALIZE, _S.FINALIZED, _S.ABORTED},
    _S.INITIALIZE: {_S.HANDLING_START, _S.FINALIZED, _S.ABORTED},
    _S.HANDLING_START: {_S.HANDLING_PROCESSING, _S.HANDLING_COMPLETED, _S.ABORTED},
    _S.HANDLING_PROCESSING: {_S.HANDLING_COMPLETED, _S.ABORTED},
    _S.HANDLING_COMPLETED: {_S.HANDLING_START, _S.FINALIZED, _S.ABORTED},
    _S.FINALIZED: set[RankMonitorState](),
    _S.ABORTED: set[RankMonitorState](),
}
_HANDLING: Final = {_S.HANDLING_START, _S.HANDLING_PROCESSING}


class RankMonitorStateMachine:
    """Follows the rank, and logs each transition if requested.

    Args:
        log: write `[NestedRestarter] name=[InJob] state=...` lines.

    Attributes:
        state: the current state.
    """

    def __init__(self, *, log: bool = False) -> None:
        self.state, self._log = RankMonitorState.UNINITIALIZED, log

    def transition_to(self, state: RankMonitorState) -> None:
        """Go to a state.

        Raises:
            InvalidStateTransitionException: when no transition leads to it from the current state.
        """
        if state not in _NEXT[self.state]:
            allowed = ", ".join(sorted(each.name for each in _NEXT[self.state])) or "nothing"
            raise InvalidStateTransitionException(f"{self.state.name} -> {state.name}; allowed is {allowed}")
        self.state = state
        if self._log:
            log.info("[NestedRestarter] name=[InJob] state=%s", state.value)

    def attached(self) -> None:
        """Record that a rank is monitored."""
        if self.state is RankMonitorState.UNINITIALIZED:
            self.transition_to(RankMonitorState.INITIALIZE)
        elif self.state in _HANDLING:
            self.transition_to(RankMonitorState.HANDLING_COMPLETED)

    def connection_lost(self) -> None:
        """Record that the rank has exited; while the loss of its predecessor is being handled, the monitor aborts."""
        if self.state in _HANDLING:
            self.transition_to(RankMonitorState.ABORTED)
        elif RankMonitorState.HANDLING_START in _NEXT[self.state]:
            self.transition_to(RankMonitorState.HANDLING_START)

    def finish(self) -> None:
        """Record that the monitor ends."""
        if self.state in _HANDLING:
            self.transition_to(RankMonitorState.ABORTED)
        elif RankMonitorState.FINALIZED in _NEXT[self.state]:
            self.transition_to(RankMonitorState.FINALIZED)
