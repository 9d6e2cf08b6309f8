"""The ports of the main thread's flow, as `nvrx_core.inprocess.protocol.ports` has them, but for the function's.

The user's plug-ins, whose exceptions are outcomes: the flow decides what follows. The rank between two iterations: it
waits for the monitor thread, arrives at the barrier and continues. The end of the call: which ranks are notified of
the exit, and which are waited for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from nvrx_core.errors import HealthCheckError, PeerExited, StoreLost
from nvrx_core.events.log import EventLog
from nvrx_core.failpoint import hit
from nvrx_core.fault.exceptions import text_of
from nvrx_core.fault.record import FaultRecord
from nvrx_core.flow import operation
from nvrx_core.inprocess.call.early_exit import EarlyExit
from nvrx_core.inprocess.call.function_abort import FunctionAbort, RoundProgress
from nvrx_core.inprocess.call.hang_reporter import HangReporter
from nvrx_core.inprocess.call.monitor_link import MonitorLink
from nvrx_core.inprocess.call.own_faults import OwnFaults
from nvrx_core.inprocess.call.parameters import Parameters, leader_of
from nvrx_core.inprocess.call.restart_trace import RestartTrace
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.coordination.control_store import CallStore, ControlStore
from nvrx_core.inprocess.coordination.housekeeping import Housekeeping
from nvrx_core.inprocess.coordination.membership import ProgressSurvey, await_clients
from nvrx_core.inprocess.groups.observer import HeldGroups
from nvrx_core.inprocess.monitor_thread import MonitorThread
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, RoundDecision
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.inprocess.protocol.round import RoundView
from nvrx_core.inprocess.state import State
from nvrx_core.process.garbage import collect_garbage
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.base import Mode, RankAssignmentCtx
from nvrx_core.rank_assignment.composition import assign, declare, snapshot
from nvrx_core.rank_assignment.identity import InitialRank, initial_ranks

__all__ = ["ArrivalReport", "Leaving", "PlugIns", "RankStatus", "RankStore"]


log = logging.getLogger("nvrx_core.inprocess")


class PlugIns:
    """Runs them.

    Args:
        parameters: the parameters of the wrapper.
        state: the state of this rank.
        events: the event file, to which the completion is written.
        connections: open the store of a rank assignment.
        trace: records the steps of a restart.
        abort: the abort, whose parts for the main thread run here.

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
        abort: FunctionAbort,
    ) -> None:
        self._parameters, self._state, self._events = parameters, state, events
        self._connections, self._trace, self._abort = connections, trace, abort
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
            self._abort.finish(self._state.freeze())
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


class RankStore(CallStore):
    """The control store of the main thread.

    Args:
        control_store: on the thread's connection.
        size: the initial number of members.
        faults: writes a fault that is announced to the event file, afterwards: the others do not wait for a file.
        housekeeping: stops before the rank leaves, as the call's keys may be deleted then.
        hangs: likewise, once the verdict on a hang just before is given.
    """

    def __init__(
        self,
        control_store: ControlStore,
        size: int,
        faults: OwnFaults,
        *,
        housekeeping: Housekeeping,
        hangs: HangReporter,
    ) -> None:
        super().__init__(lambda: control_store, size)
        self._faults, self._housekeeping, self._hangs = faults, housekeeping, hangs

    @operation
    def announce(self, iteration: int, fault: FaultRecord) -> FaultRecord | None:
        """Write the fault as the round's event, unless it has one; return the event, None for a completion."""
        event = self.rounds().announce(iteration, fault)
        self._faults.report(fault)
        return event

    @operation
    def mark_left(self, member: InitialRank, *, silent: bool = False) -> None:
        """Write that a member no longer needs the store."""
        self._hangs.finish()
        self._housekeeping.close()
        self._control_store().membership.mark_left(member, silent=silent)


class RankStatus:
    """The rank at a barrier: its progress page, its waits, its garbage.

    Args:
        state: the state of this rank.
        survey: finds the members in an atomic section.
        monitor: receives the stage of the main thread.
        thread: the monitor thread, which the main thread waits for.
        early_exit: the reason for an early exit of this rank.
        trace: records the steps of a restart.
    """

    def __init__(
        self,
        state: State,
        survey: ProgressSurvey,
        *,
        monitor: MonitorLink,
        thread: MonitorThread,
        early_exit: EarlyExit,
        trace: RestartTrace,
    ) -> None:
        self._state, self._survey, self._monitor = state, survey, monitor
        self._thread, self._early_exit, self._trace = thread, early_exit, trace

    @operation
    def wait(self, view: RoundView, until: Callable[[RoundView], bool], deadline: float) -> None:
        """Wait for the monitor thread, in a wait that a signal interrupts."""
        early_exit = self._early_exit
        self._thread.changed.wait_for(lambda: until(view) or early_exit.reason is not None, deadline - time.monotonic())
        if not until(view):
            early_exit.raise_if_due()

    @operation
    def enter(self, stage: Stage) -> None:
        """Write the stage of the main thread to the progress page."""
        if stage is Stage.ARRIVED:
            hit("barrier-before", self._monitor.page[ProgressField.ITERATION])
        self._monitor.enter(stage)

    @operation
    def lose(self, members: tuple[InitialRank, ...]) -> None:
        """Write the lost members to the progress page."""
        self._trace.mark("decided")
        self._monitor.page.lose(members)

    @operation
    def begin_iteration(self) -> None:
        """Write the iteration in this rank's state to the progress page."""
        self._monitor.begin(self._state)
        self._trace.mark("assigned")

    @operation
    def round_ended(self, view: RoundView) -> None:
        """The round restarts and this rank has left the function: start the trace of the restart."""
        self._trace.round_ended(view, self._thread.marks, self._monitor.page[ProgressField.STEP] - 1)

    @operation
    def find_holders(self, iteration: int, members: frozenset[InitialRank]) -> Mapping[int, int]:
        """Return the members in an atomic section of the round, and the beats of their leases."""
        holders = self._survey.holders(iteration, members, self._state.initial_rank)
        if holders:
            log.warning("iteration %d: waiting for initial ranks %s, in an atomic section", iteration, sorted(holders))
        return holders

    @operation
    def collect_garbage(self) -> None:
        """Collect garbage while this rank waits for the others' arrivals."""
        collect_garbage()


class ArrivalReport:
    """Describes the arrivals of one rank.

    Args:
        state: the state of the rank.
        page: the progress page, with the step that the rank has reported.
        plug_ins: have evaluated its keys.
        sample: its progress when the round ended.
        connections: offer an endpoint for the rendezvous of the next process group.
        parameters: determine whether the others can compute which endpoint is used.
    """

    def __init__(
        self,
        state: State,
        page: Page,
        plug_ins: PlugIns,
        *,
        sample: RoundProgress,
        connections: Connections,
        parameters: Parameters,
    ) -> None:
        self._state, self._page, self._plug_ins = state, page, plug_ins
        self._sample, self._connections, self._parameters = sample, connections, parameters
        self._step = -1

    @operation
    def describe_arrival(
        self, status: ArrivalStatus, fault: FaultRecord | None, *, completed: bool = False, long: bool = False
    ) -> Arrival:
        """Return the rank's arrival at the end of the round that it is in."""
        state, sample = self._state, self._sample
        self._step = max(self._step, self._page[ProgressField.STEP] - 1)
        return Arrival(
            initial_rank=state.initial_rank, rank=state.rank, status=status, world_size=state.world_size,
            fault=fault, step=self._step, progress=sample.progress if state.mode is Mode.ACTIVE else None,
            stalled=sample.stalled, completed=completed, long=long, keys=self._plug_ins.keys,
            endpoint=self._offer() if status is ArrivalStatus.ALIVE else "",
        )  # fmt: skip

    def _offer(self) -> str:
        """Return the `host:port` at which this rank can host the next rendezvous.

        "" if it cannot, or if the others could not compute that it is rank 0: then rank 0 writes its endpoint.
        """
        return self._connections.offer_rendezvous() if leader_of(self._parameters, 1, ()) is not None else ""


class Leaving:
    """The end of the call on one rank.

    Args:
        state: the state of this rank.
        events: the event file, to which the exit is written.
        parameters: the parameters of the wrapper, which bound the wait for the others.
        connections: to the store, which this process may host, and which knows the members that need it no longer.
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
        connections: Connections,
        monitor: MonitorLink,
        groups: HeldGroups,
        early_exit: EarlyExit,
    ) -> None:
        self._state, self._events, self._parameters = state, events, parameters
        self._connections, self._monitor = connections, monitor
        self._groups, self._early_exit = groups, early_exit

    @operation
    def report_left(self, error: BaseException | None) -> None:
        """Write that this rank leaves, and why, to the event file."""
        reason = text_of(error) if error is not None else ""
        if isinstance(error, PeerExited):  # Python prints nothing at an exit with a code
            rank, code = self._state.initial_rank, error.exit_code
            log.error("initial rank %d leaves with exit code %d: %s", rank, code, error)
        self._events.write("left", self._state.iteration, reason=reason)

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
        self._monitor.abandon(error)
        log.warning("initial rank %d leaves: %s", self._state.initial_rank, text_of(error))
