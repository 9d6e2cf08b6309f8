"""This rank's lease in the store: a counter that its monitor process increments.

The lease also contains the progress of the rank; `nvrx_core.liveness.peer_progress` has its fields.
"""

from __future__ import annotations

import time

from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.store_link import StoreLink
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["LeaseKeeper"]


class LeaseKeeper:
    """Renews the lease, and records on the page when the store last answered.

    Args:
        plan: has the rank.
        page: its progress page.
        store: the connection to the control store.
        awake: the awake time of this process.
    """

    def __init__(self, plan: MonitorPlan, page: Page, store: StoreLink, awake: AwakeClock) -> None:
        self.plan, self.page, self.store, self.awake = plan, page, store, awake
        self._beats, self._lease = 0, ""

    def move(self) -> None:
        """Renew the lease.

        Raises:
            StoreFailure: when the store does not answer.
        """
        membership = self.store.connect().membership
        if self.page[ProgressField.STAGE] == Stage.LEFT:  # meanwhile: the keys may be deleted
            return
        self._beats += 1
        self._lease = membership.move_lease(self.plan.member, self._lease, self._next())
        beats = self._lease.partition("/")[0]
        self._beats = int(beats) if beats.isdigit() else self._beats  # a replacement goes on counting
        self.page[ProgressField.MONITOR_BEAT] = time.monotonic_ns()

    def probe(self) -> None:
        """Check whether the store answers.

        Raises:
            StoreFailure: when it does not.
        """
        self.store.connect().membership.have_left([self.plan.member])
        self.page[ProgressField.MONITOR_BEAT] = time.monotonic_ns()

    def _next(self) -> str:
        page, now = self.page, self.awake.at(time.monotonic())
        stalled = now - self.awake.at(page.alive_at()) > self.plan.soft / 2
        inside = (
            now - self.awake.at(page[ProgressField.RENDEZVOUS_AT] / 1e9) if page[ProgressField.RENDEZVOUS_DEPTH] else 0
        )
        fields = (
            ProgressField.MONITOR_PID,
            ProgressField.STAGE,
            ProgressField.ITERATION,
            ProgressField.RENDEZVOUS_COUNT,
            ProgressField.COLLECTIVES,
            ProgressField.ATOMIC,
        )
        return "/".join(map(str, (self._beats, int(stalled), *(page[field] for field in fields), int(inside))))
