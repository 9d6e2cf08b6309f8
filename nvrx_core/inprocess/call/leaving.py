"""The end of a call on one rank: who is notified of the exit, and which ranks are waited for."""

from __future__ import annotations

import logging
from contextlib import suppress

from nvrx_core.errors import PeerExited, StoreLost
from nvrx_core.events.log import EventLog
from nvrx_core.fault.exceptions import text_of
from nvrx_core.flow import operation
from nvrx_core.inprocess.call.early_exit import EarlyExit
from nvrx_core.inprocess.call.hang_reporter import HangReporter
from nvrx_core.inprocess.call.parameters import Parameters
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.coordination.housekeeping import Housekeeping
from nvrx_core.inprocess.coordination.membership import await_clients
from nvrx_core.inprocess.groups.observer import HeldGroups
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.inprocess.state import State
from nvrx_core.rank_assignment.identity import InitialRank, initial_ranks

__all__ = ["Leaving"]

log = logging.getLogger("nvrx_core.inprocess")


class Leaving:
    """The end of the call on one rank.

    Args:
        state: the state of this rank.
        events: the event file, to which the exit is written.
        parameters: the parameters of the wrapper, which bound the wait for the others.
        connections: to the store, which this process may host, and which knows the members that need it no longer.
        groups: the process groups of the function, released before a stay that may be long.
        early_exit: notified when the store is lost, or an exception ends the call.
        housekeeping, hangs: write to the store beside the restarts.
    """

    def __init__(
        self,
        state: State,
        events: EventLog,
        parameters: Parameters,
        *,
        connections: Connections,
        groups: HeldGroups,
        early_exit: EarlyExit,
        housekeeping: Housekeeping,
        hangs: HangReporter,
    ) -> None:
        self._state, self._events, self._parameters = state, events, parameters
        self._connections, self._groups, self._early_exit = connections, groups, early_exit
        self._housekeeping, self._hangs = housekeeping, hangs

    @operation
    def report_left(self, error: BaseException | None) -> None:
        """Write that this rank leaves, and why, to the event file."""
        reason = text_of(error) if error is not None else ""
        if isinstance(error, PeerExited):  # Python prints nothing at an exit with a code
            rank, code = self._state.initial_rank, error.exit_code
            log.error("initial rank %d leaves with exit code %d: %s", rank, code, error)
        self._events.write("left", self._state.iteration, reason=reason)

    @operation
    def finish_reports(self) -> None:
        """Finish what is written to the store beside the restarts: afterwards the call's keys may be deleted."""
        self._hangs.finish()
        self._housekeeping.close()

    @operation
    def await_clients(self, members: frozenset[InitialRank], *, completed: bool) -> None:
        """Host the store until the members no longer need it; all have completed, or each leaves by itself."""
        membership = self._connections.control_store.membership
        self._groups.clear()
        with suppress(StoreFailure):
            if completed:
                membership.wait_left(members, self._parameters.barrier_timeout)
            else:
                initial, silent_for = initial_ranks(self._state.initial_world_size), self._parameters.heartbeat_timeout
                await_clients(membership, initial, silent_for.total_seconds())

    @operation
    def await_host_closed(self) -> None:
        """Wait, for a bounded time, until the rank that hosts the store has closed it."""
        self._connections.wait_host_closed()

    @operation
    def lose_store(self, reason: str) -> StoreLost:
        """The store is lost: notify the monitor process; return the error with which the call ends."""
        return self._early_exit.store_lost(reason)

    @operation
    def abandon(self, error: BaseException) -> None:
        """Early exit of this rank: let the monitor process notify the others."""
        self._early_exit.abandon(error)
