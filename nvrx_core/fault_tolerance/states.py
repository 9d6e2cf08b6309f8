"""The states of a rank monitor, as named in its log lines.

A rank that connects for the first time initialises the monitor. The loss of a rank starts the handling of a fault, and
the first sign of life of its successor completes it.
"""

from __future__ import annotations

import enum
import logging

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
            InvalidStateTransitionException: when the current state is FINALIZED or ABORTED.
        """
        if self.state in (RankMonitorState.FINALIZED, RankMonitorState.ABORTED):
            raise InvalidStateTransitionException(f"{self.state.name} -> {state.name}; {self.state.name} is final")
        self.state = state
        if self._log:
            log.info("[NestedRestarter] name=[InJob] state=%s", state.value)

    def attached(self) -> None:
        """Record that a rank is monitored."""
        if self.state is RankMonitorState.UNINITIALIZED:
            self.transition_to(RankMonitorState.INITIALIZE)
        elif self.state is RankMonitorState.HANDLING_START:
            self.transition_to(RankMonitorState.HANDLING_COMPLETED)

    def connection_lost(self) -> None:
        """Record that the rank has exited without shutting its monitoring down."""
        self.transition_to(RankMonitorState.HANDLING_START)
