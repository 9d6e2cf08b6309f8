"""Judges whether the rank is hung, and ends it when it is: the shell of `HangDetector`.

A rank that waits for stragglers is excused. They are named once an iteration, and are neither blamed nor ended before
the hard timeout.
"""

from __future__ import annotations

import logging
import signal
import time
from typing import Final

from nvrx_core.inprocess.monitor.fault_reporter import HardTimeout, Stall
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.sample import take_sample
from nvrx_core.inprocess.monitor.stack_report import report_stacks
from nvrx_core.inprocess.monitor.store_link import StoreLink
from nvrx_core.inprocess.protocol.effects import StoreFailure
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.hang_detector import HangDetector, Kill, Poke, QueryPeers, SoftTimeout, Terminate
from nvrx_core.process.lifeline import catches, send
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["HangMonitor"]

log = logging.getLogger("nvrx_core.inprocess.monitor.process")
STORE_GRACE: Final = 5.0
"""Seconds that a rank has to leave after the store was lost."""


class HangMonitor:
    """Judges one rank.

    Args:
        plan: the timeouts, and the rank's process.
        page: its progress page.
        store: where the progress of the other members is read.
        awake: the awake time of this process, in which silence is measured.
    """

    def __init__(self, plan: MonitorPlan, page: Page, store: StoreLink, awake: AwakeClock) -> None:
        self.plan, self.page, self.store, self.awake = plan, page, store, awake
        self.detector = HangDetector(plan.soft, plan.hard, plan.grace)
        self._ended_for: str | None = None
        self._stragglers_of = -1

    @property
    def deadline(self) -> float:
        """When to judge again at the latest, awake seconds."""
        return self.detector.deadline

    def judge(self, out_by: float) -> Stall | None:
        """Judge the rank, and signal or end it where that is due.

        Args:
            out_by: when its main thread has to be out of a round that is over, awake seconds.

        Returns:
            The stall that all ranks must be told of; None for none.
        """
        stall = None
        peers_were_asked = True
        while peers_were_asked:
            peers_were_asked = False
            now = self.awake.at(time.monotonic())
            sample = take_sample(self.page, self.plan.rank_pid, self.awake, out_by)
            for action in self.detector.evaluate(sample, now=now):
                match action:
                    case QueryPeers():
                        self.detector.peers_progressing(self._peers_progressing(), now=now)
                        peers_were_asked = True
                    case SoftTimeout(reason):
                        self.page[ProgressField.STALLED] = sample.iteration + 1
                        stall = Stall(sample.iteration, reason)
                    case Poke() | Terminate() | Kill():
                        self._signal(action)
        return stall

    def hard_timeout(self) -> HardTimeout | None:
        """Why this process has ended the rank; None when it has not."""
        if self._ended_for is None:
            return None
        since = self.detector.no_progress_since
        return HardTimeout(self._ended_for, self.page.alive_at() if since is None else self.awake.when(since))

    def enforce_store_loss(self) -> None:
        """Kill a rank that has not left within `STORE_GRACE` after the store was lost."""
        lost_at = self.awake.at(self.page[ProgressField.STORE_LOST] / 1e9)
        if self.awake.at(time.monotonic()) >= lost_at + STORE_GRACE:
            log.error("rank %d did not leave after the store was lost", self.plan.member)
            report_stacks(self.plan, self.page)
            send(self.plan.rank_pidfd, [signal.SIGCONT, signal.SIGKILL])

    def _signal(self, action: Poke | Terminate | Kill) -> None:
        plan = self.plan
        match action:
            case Poke():
                send(plan.rank_pidfd, [plan.interrupt_signal])
            case Terminate(reason):
                self._ended_for = reason
                log.warning("end rank %d: %s", plan.member, reason)
                report_stacks(plan, self.page)
                graceful = plan.grace > 0 and catches(plan.rank_pid, signal.SIGTERM)
                send(plan.rank_pidfd, [signal.SIGCONT, signal.SIGTERM, *([] if graceful else [signal.SIGKILL])])
            case Kill(reason):
                log.warning("kill rank %d: %s", plan.member, reason)
                send(plan.rank_pidfd, [signal.SIGCONT, signal.SIGTERM, signal.SIGKILL])

    def _peers_progressing(self) -> bool:
        """Whether a member that this rank may wait for is alive and has yet to come to where this rank is."""
        page, me = self.page, self.plan.member
        iteration = page[ProgressField.ITERATION]
        rendezvous = page[ProgressField.RENDEZVOUS_COUNT] if page[ProgressField.RENDEZVOUS_DEPTH] else 0
        try:
            progress = self.store.connect().survey.slowest(page.members() - {me}, me)
        except StoreFailure:
            return False
        behind = progress.behind(iteration, rendezvous, page[ProgressField.COLLECTIVES])
        if behind and self._stragglers_of != iteration:
            self._stragglers_of = iteration
            self.plan.events.write("straggler", iteration, ranks=behind, seconds=self.plan.soft)
            log.warning("waited for initial ranks %s for %g s (soft_timeout)", list(behind), self.plan.soft)
        return bool(behind)
