"""Tells a rank whose threads do not run that its round is over: the shell of `GilStallPolicy`."""

from __future__ import annotations

from nvrx_core.inprocess.monitor.gil_stall import (
    GilStallAction,
    GilStallPolicy,
    MarkRoundOver,
    QueryRoundEvent,
    SendSignal,
)
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.store_link import StoreLink
from nvrx_core.inprocess.protocol.effects import StoreFailure
from nvrx_core.liveness.hang_detector import ProgressSample
from nvrx_core.process.lifeline import send
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["GilStallMonitor"]


class GilStallMonitor:
    """Writes on the page that the round is over, and sends the interrupt signal.

    Args:
        plan: the timeouts, the rank's process and the interrupt signal.
        page: the rank's progress page.
        store: where the round's event is looked for.
    """

    def __init__(self, plan: MonitorPlan, page: Page, store: StoreLink) -> None:
        self.plan, self.page, self.store = plan, page, store
        self.policy = GilStallPolicy(silent=1.5 * plan.watchdog_interval + 0.25, confirm=plan.hard - plan.soft)

    def act(self, sample: ProgressSample, *, now: float) -> None:
        """Do what is due; `policy.deadline` says when to act again.

        Args:
            sample: the rank's progress, in awake time.
            now: awake seconds.
        """
        self._perform(self.policy.evaluate(sample, now=now), sample.iteration, now)

    def _perform(self, actions: tuple[GilStallAction, ...], iteration: int, now: float) -> None:
        for action in actions:
            match action:
                case QueryRoundEvent():
                    if self._has_event(iteration):
                        self._perform(self.policy.round_over(now=now), iteration, now)
                case MarkRoundOver():
                    self.page[ProgressField.ROUND_OVER] = iteration + 1
                case SendSignal():
                    send(self.plan.rank_pidfd, [self.plan.interrupt_signal])

    def _has_event(self, iteration: int) -> bool:
        try:
            return self.store.connect().rounds.has_event(iteration)
        except StoreFailure:
            return False
