"""The end of a call, in the main thread: which ranks are notified of the exit, and which are waited for."""

from __future__ import annotations

import logging
from contextlib import suppress

from nvrx_core.errors import PeerExited
from nvrx_core.events.log import EventLog
from nvrx_core.fault.exceptions import text_of
from nvrx_core.inprocess.call.early_exit import EarlyExit
from nvrx_core.inprocess.call.monitor_link import MonitorLink
from nvrx_core.inprocess.configuration.parameters import Parameters
from nvrx_core.inprocess.coordination.clients import await_clients
from nvrx_core.inprocess.coordination.membership import Membership
from nvrx_core.inprocess.groups.held_groups import HeldGroups
from nvrx_core.inprocess.interpretation.interpreter import Rules
from nvrx_core.inprocess.protocol import effects
from nvrx_core.inprocess.protocol.effects import StoreFailure
from nvrx_core.inprocess.state import State
from nvrx_core.rank_assignment.identity import initial_ranks

__all__ = ["Leaving"]

log = logging.getLogger("nvrx_core.inprocess")


class Leaving:
    """Executes the effects of leaving a call.

    Args:
        state: the state of this rank.
        events: the event file, to which the exit is written.
        parameters: the parameters of the wrapper, which bound the wait for the others.
        membership: knows the members that no longer need the store.
        monitor: notifies the others of an early exit.
        groups: the process groups of the function, released before a stay that may be long.
        early_exit: notified when the store is lost.
    """

    def __init__(
        self,
        state: State,
        events: EventLog,
        parameters: Parameters,
        *,
        membership: Membership,
        monitor: MonitorLink,
        groups: HeldGroups,
        early_exit: EarlyExit,
    ) -> None:
        self._state, self._events, self._parameters = state, events, parameters
        self._membership, self._monitor, self._groups, self._early_exit = membership, monitor, groups, early_exit

    def rules(self) -> Rules:
        """The effects of leaving."""
        return {
            effects.ReportLeft: self._report_left,
            effects.AwaitClients: self._await_clients,
            effects.LoseStore: lambda effect: self._early_exit.store_lost(effect.reason),
            effects.Abandon: self._abandon,
        }

    def _report_left(self, effect: effects.ReportLeft) -> None:
        reason = text_of(effect.error) if effect.error is not None else ""
        if isinstance(effect.error, PeerExited):  # Python prints nothing at an exit with a code
            rank, code = self._state.initial_rank, effect.error.exit_code
            log.error("initial rank %d leaves with exit code %d: %s", rank, code, effect.error)
        self._events.write("left", self._state.iteration, reason=reason)

    def _await_clients(self, effect: effects.AwaitClients) -> None:
        self._groups.clear()
        with suppress(StoreFailure):
            if effect.completed:
                self._membership.wait_left(effect.members, self._parameters.barrier_timeout)
            else:
                if self._state.initial_world_size > 1:
                    log.warning("this rank hosts the control store and stays until the others need it no longer")
                members, silent_for = initial_ranks(self._state.initial_world_size), self._parameters.heartbeat_timeout
                await_clients(self._membership, members, silent_for.total_seconds())

    def _abandon(self, effect: effects.Abandon) -> None:
        log.warning("initial rank %d leaves: %s", self._state.initial_rank, text_of(effect.error))
        self._monitor.abandon(effect.error)
