"""How a monitor process interrupts, ends and kills its rank.

A stopped process (SIGSTOP) is continued only after the signal that ends it was sent. If it ran for a moment before
that, its threads would take part in the restart, which would then count a rank that is about to die.
"""

from __future__ import annotations

import logging
import signal

from nvrx_core.inprocess.interpretation.interpreter import Rules
from nvrx_core.inprocess.monitor import watch_effects as effects
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.stack_report import report_stacks
from nvrx_core.process.lifeline import catches, send
from nvrx_core.progress.page import Page

__all__ = ["RankSignals"]

log = logging.getLogger("nvrx_core.inprocess.monitor.process")


class RankSignals:
    """Sends signals to one rank.

    Args:
        plan: the rank's process, and the signal that interrupts.
        page: its progress page.
    """

    def __init__(self, plan: MonitorPlan, page: Page) -> None:
        self.plan, self.page = plan, page

    def rules(self) -> Rules:
        """Return the rules for the effects that signal the rank."""
        return {
            effects.InterruptRank: self._interrupt,
            effects.TerminateRank: self._terminate,
            effects.KillRank: self._kill,
            effects.KillWithoutStore: self._kill_without_store,
        }

    def _interrupt(self, effect: effects.InterruptRank) -> None:
        log.debug("interrupt rank %d: %s", self.plan.member, effect.reason)
        if catches(self.plan.rank_pid, self.plan.interrupt_signal):  # else the default action would end it
            send(self.plan.rank_pidfd, [self.plan.interrupt_signal])

    def _terminate(self, effect: effects.TerminateRank) -> None:
        plan = self.plan
        log.warning("end rank %d: %s", plan.member, effect.reason)
        report_stacks(plan, self.page)
        graceful = plan.grace > 0 and catches(plan.rank_pid, signal.SIGTERM)
        send(plan.rank_pidfd, [signal.SIGTERM, signal.SIGCONT if graceful else signal.SIGKILL])

    def _kill(self, effect: effects.KillRank) -> None:
        log.warning("kill rank %d: %s", self.plan.member, effect.reason)
        send(self.plan.rank_pidfd, [signal.SIGKILL])

    def _kill_without_store(self, effect: effects.KillWithoutStore) -> None:
        log.error("kill rank %d: %s", self.plan.member, effect.reason)
        report_stacks(self.plan, self.page)
        send(self.plan.rank_pidfd, [signal.SIGKILL])
