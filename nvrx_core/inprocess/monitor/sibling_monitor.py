"""Watches the leases of the siblings: the shell of `SiblingRing`."""

from __future__ import annotations

from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.sibling_ring import SiblingRing
from nvrx_core.inprocess.monitor.store_link import StoreLink
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["SiblingMonitor"]


class SiblingMonitor:
    """Reads the leases of some siblings.

    Args:
        plan: names the rank.
        page: its progress page.
        store: where the leases are.
    """

    def __init__(self, plan: MonitorPlan, page: Page, store: StoreLink) -> None:
        self.plan, self.page, self.store = plan, page, store
        self.ring = SiblingRing(plan.member, plan.heartbeat_timeout)

    def unresponsive(self, *, now: float) -> list[int]:
        """Return the siblings whose monitor process is silent, and that have not left.

        Args:
            now: awake seconds.

        Raises:
            StoreFailure: when the store does not answer.
        """
        siblings = sorted(self.page.members() - {self.plan.member})
        if not siblings or self.page[ProgressField.STAGE] == Stage.LEFT:
            return []
        membership, watched = self.store.connect().membership, self.ring.watched(siblings, now=now)
        all_have_arrived = self.page[ProgressField.ITERATION] >= 0
        leases = membership.leases(watched)
        silent = self.ring.observe(watched, leases, all_have_arrived=all_have_arrived, now=now)
        return [member for member in silent if not membership.have_left([member])]
