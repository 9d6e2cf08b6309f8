"""Whether a rank that shows no progress waits for others, as its monitor process sees it; who those are is told once.

They are stragglers: a rank that keeps others waiting for longer than the soft timeout, and goes on. It is neither
blamed nor ended before the hard timeout.
"""

from __future__ import annotations

import logging

from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["Peers"]

log = logging.getLogger("nvrx_core.inprocess.monitor.process")


class Peers:
    """The other members of a rank.

    Args:
        plan: the rank's.
        page: its progress page.
    """

    def __init__(self, plan: MonitorPlan, page: Page) -> None:
        self.plan, self.page = plan, page
        self._told_of = -1

    def on_the_way(self, control_store: ControlStore) -> bool:
        """Whether a member that is alive has yet to come to where this rank is, which may wait for it.

        Raises:
            StoreFailure: when the store does not answer.
        """
        page, me = self.page, self.plan.member
        iteration, inside = page[ProgressField.ITERATION], page[ProgressField.MEETING] > 0
        slowest = control_store.slowest(page.members() - {me}, me)
        behind = slowest.behind(
            iteration, page[ProgressField.MEETINGS] if inside else 0, page[ProgressField.COLLECTIVES]
        )
        if behind and self._told_of != iteration:
            self._told_of = iteration
            self.plan.events.write("straggler", iteration, ranks=behind, seconds=self.plan.soft)
            log.warning("waited for initial ranks %s for %g s (soft_timeout)", list(behind), self.plan.soft)
        return bool(behind)

    def waiting(self, control_store: ControlStore) -> tuple[int, ...]:
        """Some of the members that wait for this rank, which has completed; empty while another is on the way.

        Raises:
            StoreFailure: when the store does not answer.
        """
        page, me = self.page, self.plan.member
        return control_store.slowest(page.members() - {me}, me).waiting(
            page[ProgressField.ITERATION], page[ProgressField.MEETINGS]
        )

    def exited(self) -> int | None:
        """The iteration that this rank has completed by exit, and that goes on; None when there is none."""
        page, iteration = self.page, self.page[ProgressField.ITERATION]
        return (
            iteration
            if page[ProgressField.EXITED] == iteration + 1 and page[ProgressField.STAGE] == Stage.WAITING
            else None
        )
