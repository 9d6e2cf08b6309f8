"""How a monitor process interrupts, ends and kills its rank.

A stopped process (SIGSTOP) is continued only after the signal that ends it was sent. If it ran for a moment before
that, its threads would take part in the restart, which would then count a rank that is about to die.
"""

from __future__ import annotations

import logging
import signal

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

    def interrupt(self, reason: str) -> None:
        """Send the interrupt signal, if it is handled."""
        log.debug("interrupt rank %d: %s", self.plan.member, reason)
        if catches(self.plan.rank_pid, self.plan.interrupt_signal):  # else the default action would end it
            send(self.plan.rank_pidfd, [self.plan.interrupt_signal])

    def terminate(self, reason: str) -> None:
        """Terminate the rank, with a grace period for its signal handler."""
        plan = self.plan
        log.warning("end rank %d: %s", plan.member, reason)
        report_stacks(plan, self.page)
        graceful = plan.grace > 0 and catches(plan.rank_pid, signal.SIGTERM)
        send(plan.rank_pidfd, [signal.SIGTERM, signal.SIGCONT if graceful else signal.SIGKILL])

    def kill(self, reason: str) -> None:
        """Kill the rank, which was asked to terminate."""
        log.warning("kill rank %d: %s", self.plan.member, reason)
        send(self.plan.rank_pidfd, [signal.SIGKILL])

    def kill_without_store(self, reason: str) -> None:
        """Kill the rank, whose death cannot be reported to the store."""
        log.error("kill rank %d: %s", self.plan.member, reason)
        report_stacks(self.plan, self.page)
        send(self.plan.rank_pidfd, [signal.SIGKILL])
