"""The user's plug-ins, as the main thread's flow calls them: what one raises is an outcome, and the flow goes on."""

from __future__ import annotations

import logging

from nvrx_core.errors import HealthCheckError
from nvrx_core.events.log import EventLog
from nvrx_core.fault.exceptions import text_of
from nvrx_core.flow import operation
from nvrx_core.inprocess.abort import AbortChain
from nvrx_core.inprocess.call.handles import PassedVotes
from nvrx_core.inprocess.call.parameters import Parameters
from nvrx_core.inprocess.call.restart_trace import RestartTrace
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.protocol.decision import RoundDecision
from nvrx_core.inprocess.state import State
from nvrx_core.rank_assignment.base import Mode, RankAssignmentCtx
from nvrx_core.rank_assignment.composition import assign, declare, snapshot

__all__ = ["PlugIns"]

log = logging.getLogger("nvrx_core.inprocess")


class PlugIns:
    """Runs the plug-ins that the parameters name.

    Args:
        parameters: the parameters of the wrapper.
        state: the state of this rank.
        events: the event file, to which the completion is written.
        connections: open the store of a rank assignment.
        trace: records the steps of a restart.
        votes: what the live states of the next iteration are to know of the others'.

    Attributes:
        keys: the last results of the user's key functions.
    """

    def __init__(
        self,
        parameters: Parameters,
        state: State,
        events: EventLog,
        *,
        connections: Connections,
        trace: RestartTrace,
        votes: PassedVotes,
    ) -> None:
        self._parameters, self._state, self._events, self._votes = parameters, state, events, votes
        self._connections, self._trace, self._abort = connections, trace, AbortChain(parameters.abort)
        self.keys: tuple[str, ...] = ()

    def initialize(self) -> HealthCheckError | None:
        """Run the user's initialize and health check; return the failure of the health check.

        Raises:
            BaseException: the exception of initialize.
        """
        if self._parameters.initialize is not None:
            self._parameters.initialize(self._state.freeze())
        try:
            self._check_health()
        except HealthCheckError as error:
            return error
        self._trace.mark("initialized")
        return None

    def _check_health(self) -> None:
        if self._parameters.health_check is None:
            return
        try:
            self._parameters.health_check(self._state.freeze())
        except Exception as error:  # boundary: a user's health check
            message = f"health check failed: {text_of(error)}"
            raise HealthCheckError(message, initial_rank=self._state.initial_rank) from error

    @operation
    def declare_keys(self, iteration: int) -> BaseException | None:
        """Evaluate the key functions after the round."""
        try:
            self.keys = declare(self._parameters.rank_assignment, self._state, iteration)
        except BaseException as error:  # boundary: a user's key function; whatever it raises, the rank leaves
            return error
        return None

    @operation
    def assign(self, decision: RoundDecision) -> BaseException | None:
        """Assign the rank of the next iteration."""
        state = self._state
        self._votes.decided(decision.vote)
        try:
            self._place(decision)
        except BaseException as error:  # boundary: a user's rank assignment; whatever it raises, the rank leaves
            state.mode = Mode.TERMINATED
            return error
        if decision.iteration >= 0:
            state.advance()
        state.set_distributed_vars()
        return None

    def _place(self, decision: RoundDecision) -> None:
        parameters, state = self._parameters, self._state
        ranks, terminated = parameters.rank_assignment, set(decision.terminated)
        store = self._connections.assignment_store(decision.iteration + 1)
        facts = snapshot(
            ranks, state.freeze(), iteration=decision.iteration, terminated=terminated, columns=decision.keys
        )
        assign(ranks, RankAssignmentCtx(state, store, terminated, facts))
        if parameters.rank_filter is not None:
            parameters.rank_filter(RankAssignmentCtx(state, store, set()))

    @operation
    def recover(self, failure: BaseException | None) -> BaseException | None:
        """Run finalize and health check after an iteration."""
        self._state.fn_exception = failure
        try:
            self._abort.run_in_main_thread(self._state.freeze())
            if self._parameters.finalize is not None:
                self._parameters.finalize(self._state.freeze())
            self._trace.mark("finalized")
            self._check_health()
            self._trace.mark("health_checked")
        except BaseException as error:  # boundary: a user's plug-in; whatever it raises, the rank leaves
            return error
        finally:
            self._state.fn_exception = None
        return None

    @operation
    def terminate(self) -> BaseException | None:
        """Run terminate."""
        try:
            if self._parameters.terminate is not None:
                self._parameters.terminate(self._state.freeze())
        except BaseException as error:  # boundary: a user's plug-in; its exception replaces the original
            return error
        return None

    @operation
    def complete(self) -> BaseException | None:
        """All ranks have completed: run completion; return the exception that ends the call."""
        self._events.write("completed", self._state.iteration)
        try:
            if self._parameters.completion is not None:
                self._parameters.completion(self._state.freeze())
        except Exception:  # boundary: a user's completion must not undo a completed job
            log.exception("completion failed")
        except BaseException as error:  # boundary: the call ends by it
            return error
        return None
