"""The main thread between two iterations: it waits for the monitor thread, arrives at the barrier and continues."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from nvrx_core.failpoint import hit
from nvrx_core.flow import operation
from nvrx_core.inprocess.call.early_exit import EarlyExit
from nvrx_core.inprocess.call.monitor_link import MonitorLink
from nvrx_core.inprocess.call.restart_trace import RestartTrace
from nvrx_core.inprocess.coordination.survey import Survey
from nvrx_core.inprocess.monitor_thread import MonitorThread
from nvrx_core.inprocess.protocol.view import RoundView
from nvrx_core.inprocess.state import State
from nvrx_core.process.garbage import collect_garbage, collect_postponed
from nvrx_core.progress.page import ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["RankStatus"]

log = logging.getLogger("nvrx_core.inprocess")


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
        survey: Survey,
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
        early_exit, changed = self._early_exit, self._thread.changed
        with changed:
            while not until(view) and early_exit.reason is None and (now := time.monotonic()) < deadline:
                changed.wait(min(deadline - now, threading.TIMEOUT_MAX))
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
        return self._survey.holders(iteration, members, self._state.initial_rank)

    @operation
    def log_waiting(self, reason: str) -> None:
        """Log the members that the rank continues to wait for."""
        log.warning("%s", reason)

    @operation
    def collect_garbage(self) -> None:
        """Collect garbage while this rank waits for the others' arrivals."""
        collect_garbage()

    @operation
    def collect_postponed(self) -> None:
        """Collect the garbage that a released failure referred to, if any."""
        collect_postponed()
