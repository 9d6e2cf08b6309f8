"""A rank at a barrier: what its arrival says, and how it waits for the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from nvrx_core.failpoint import hit
from nvrx_core.fault.record import FaultRecord
from nvrx_core.flow import operation
from nvrx_core.inprocess.call.early_exit import EarlyExit
from nvrx_core.inprocess.call.function_abort import FunctionAbort
from nvrx_core.inprocess.call.handles import PassedVotes
from nvrx_core.inprocess.call.hang_reporter import RoundProgress
from nvrx_core.inprocess.call.monitor_link import MonitorLink
from nvrx_core.inprocess.call.parameters import Parameters
from nvrx_core.inprocess.call.plug_ins import PlugIns
from nvrx_core.inprocess.call.restart_trace import RestartTrace
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.coordination.membership import ProgressSurvey
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus
from nvrx_core.inprocess.protocol.round import RoundView
from nvrx_core.inprocess.state import State
from nvrx_core.process.signal_safe import SignalSafeCondition
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.base import Mode
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.rank_assignment.moves import FillGaps

__all__ = ["ArrivalReport", "RankStatus"]

log = logging.getLogger("nvrx_core.inprocess")


class RankStatus:
    """The rank at a barrier: its progress page, and its waits.

    Args:
        state: the state of this rank.
        survey: finds the members in an atomic section.
        monitor: receives the stage of the main thread.
        changed: the condition that the monitor thread notifies.
        abort: knows when the function was ended.
        early_exit: the reason for an early exit of this rank.
        trace: records the steps of a restart.
    """

    def __init__(
        self,
        state: State,
        survey: ProgressSurvey,
        *,
        monitor: MonitorLink,
        changed: SignalSafeCondition,
        abort: FunctionAbort,
        early_exit: EarlyExit,
        trace: RestartTrace,
    ) -> None:
        self._state, self._survey, self._monitor = state, survey, monitor
        self._changed, self._abort, self._early_exit, self._trace = changed, abort, early_exit, trace

    @operation
    def wait(self, view: RoundView, until: Callable[[RoundView], bool], deadline: float) -> None:
        """Wait for the monitor thread, in a wait that a signal interrupts."""
        early_exit = self._early_exit
        self._changed.wait_for(lambda: until(view) or early_exit.reason is not None, deadline - time.monotonic())
        if not until(view):
            early_exit.raise_if_due()

    @operation
    def enter(self, stage: Stage) -> None:
        """Write the stage of the main thread to the progress page."""
        if stage is Stage.ARRIVED:
            hit("barrier-before", self._monitor.page[ProgressField.ITERATION])
        self._monitor.enter(stage)

    @operation
    def note_decision(self, lost: tuple[InitialRank, ...]) -> None:
        """The round is decided: write the members that it has lost to the progress page."""
        self._trace.mark("decided")
        self._monitor.page.lose(lost)

    @operation
    def begin_iteration(self) -> None:
        """Write the iteration in this rank's state to the progress page."""
        self._monitor.begin(self._state)
        self._trace.mark("assigned")

    @operation
    def round_ended(self, view: RoundView) -> None:
        """The round restarts and this rank has left the function: start the trace of the restart."""
        self._trace.round_ended(view, self._abort.marks, self._monitor.page[ProgressField.STEP] - 1)

    @operation
    def find_holders(self, iteration: int, members: frozenset[InitialRank]) -> Mapping[int, int]:
        """Return the members in an atomic section of the round, and the beats of their leases."""
        holders = self._survey.holders(iteration, members, self._state.initial_rank)
        if holders:
            log.warning("iteration %d: waiting for initial ranks %s, in an atomic section", iteration, sorted(holders))
        return holders


class ArrivalReport:
    """Describes the arrivals of one rank.

    Args:
        state: the state of the rank.
        page: the progress page, with the step that the rank has reported.
        plug_ins: have evaluated its keys.
        sample: its progress when the round ended.
        connections: offer an endpoint for the rendezvous of the next process group.
        parameters: say how the ranks are assigned.
        votes: of its live state.
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
        votes: PassedVotes,
    ) -> None:
        self._state, self._page, self._plug_ins, self._votes = state, page, plug_ins, votes
        self._sample, self._connections, self._move = sample, connections, parameters.sole_move
        self._step = -1

    @operation
    def describe_arrival(
        self, status: ArrivalStatus, fault: FaultRecord | None, *, completed: bool = False, long: bool = False
    ) -> Arrival:
        """Return the rank's arrival at the end of the round that it is in.

        It offers no endpoint if the decision cannot tell whether this rank is the leader: then that writes its own.
        """
        state, sample, move = self._state, self._sample, self._move
        is_alive = status is ArrivalStatus.ALIVE
        offers = is_alive and move is not None
        vote, several = self._votes.passed() if is_alive else ((), False)
        self._step = max(self._step, self._page[ProgressField.STEP] - 1)
        return Arrival(
            initial_rank=state.initial_rank, rank=state.rank, status=status, world_size=state.world_size,
            fault=fault, step=self._step, progress=sample.progress if state.mode is Mode.ACTIVE else None,
            stalled=sample.stalled, completed=completed, long=long, keys=self._plug_ins.keys,
            endpoint=self._connections.offer_rendezvous() if offers else "", fills_gaps=isinstance(move, FillGaps),
            vote=vote, several=several,
        )  # fmt: skip
