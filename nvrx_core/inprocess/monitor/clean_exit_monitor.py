"""Looks who waits for a rank that has completed by `sys.exit(0)`: the shell of `CleanExitPolicy`."""

from __future__ import annotations

from nvrx_core.inprocess.monitor.clean_exit import CleanExitPolicy
from nvrx_core.inprocess.monitor.fault_reporter import Stall
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.store_link import StoreLink
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["CleanExitMonitor"]


class CleanExitMonitor:
    """Reads the leases of the other members while they have not completed.

    Args:
        plan: names the rank.
        page: its progress page.
        store: where the leases are.
    """

    def __init__(self, plan: MonitorPlan, page: Page, store: StoreLink) -> None:
        self.plan, self.page, self.store = plan, page, store
        self.policy = CleanExitPolicy()

    def check(self, *, now: float) -> Stall | None:
        """Return what to announce when others wait for the rank in a rendezvous; None for nothing.

        Args:
            now: awake seconds; `policy.deadline` says when to check again.

        Raises:
            StoreFailure: when the store does not answer.
        """
        page, me, iteration = self.page, self.plan.member, self._exited()
        if not self.policy.due(iteration, now=now) or iteration is None:
            return None
        progress = self.store.connect().survey.slowest(page.members() - {me}, me)
        reason = self.policy.waiting(
            progress.waiting(page[ProgressField.ITERATION], page[ProgressField.RENDEZVOUS_COUNT])
        )
        return None if reason is None else Stall(iteration, reason)

    def _exited(self) -> int | None:
        """The iteration that the rank has completed by exit, and that goes on; None when there is none."""
        page, iteration = self.page, self.page[ProgressField.ITERATION]
        waits = page[ProgressField.STAGE] == Stage.WAITING
        return iteration if waits and page[ProgressField.EXITED] == iteration + 1 else None
