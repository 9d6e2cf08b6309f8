"""The main thread between two iterations: it waits for the monitor thread, arrives at the barrier and continues."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from nvrx_core.failpoint import hit
from nvrx_core.inprocess.call.early_exit import EarlyExit
from nvrx_core.inprocess.call.monitor_link import MonitorLink
from nvrx_core.inprocess.call.restart_trace import RestartTrace
from nvrx_core.inprocess.coordination.survey import Survey
from nvrx_core.inprocess.interpretation.interpreter import Rules
from nvrx_core.inprocess.monitor_thread import MonitorThread
from nvrx_core.inprocess.protocol import effects
from nvrx_core.inprocess.state import State
from nvrx_core.process.garbage import collect_garbage, collect_postponed
from nvrx_core.progress.page import ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["Barrier"]

log = logging.getLogger("nvrx_core.inprocess")


class Barrier:
    """Carries out the effects of a barrier, but for a rank's arrival, which `ArrivalReport` describes.

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

    def rules(self) -> Rules:
        """The effects of a barrier."""
        return {
            effects.Await: self._await,
            effects.EnterStage: self._enter,
            effects.LoseMembers: self._lose,
            effects.BeginIteration: self._begin,
            effects.FindHolders: self._find_holders,
            effects.LogWaiting: lambda effect: log.warning("%s", effect.reason),
            effects.CollectGarbage: lambda effect: collect_garbage(),
            effects.CollectPostponed: lambda effect: collect_postponed(),
            effects.RoundEnded: self._round_ended,
        }

    def _await(self, effect: effects.Await) -> None:
        """Wait for the monitor thread, in a wait that a signal interrupts."""
        view, until, early_exit, changed = effect.view, effect.until, self._early_exit, self._thread.changed
        with changed:
            while not until(view) and early_exit.reason is None and (now := time.monotonic()) < effect.deadline:
                changed.wait(min(effect.deadline - now, threading.TIMEOUT_MAX))
        if not until(view):
            early_exit.raise_if_due()

    def _enter(self, effect: effects.EnterStage) -> None:
        if effect.stage is Stage.ARRIVED:
            hit("barrier-before", self._monitor.page[ProgressField.ITERATION])
        self._monitor.enter(effect.stage)

    def _lose(self, effect: effects.LoseMembers) -> None:
        self._trace.mark("decided")
        self._monitor.page.lose(effect.members)

    def _round_ended(self, effect: effects.RoundEnded) -> None:
        self._trace.round_ended(effect.view, self._thread.marks, self._monitor.page[ProgressField.STEP] - 1)

    def _begin(self, effect: effects.BeginIteration) -> None:
        self._monitor.begin(self._state)
        self._trace.mark("assigned")

    def _find_holders(self, effect: effects.FindHolders) -> Mapping[int, int]:
        return self._survey.holders(effect.iteration, effect.members, self._state.initial_rank)
