"""The control store as a monitor process uses it: the connection, the rank's lease, and the port of the flow."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

import torch.distributed as dist

from nvrx_core.failpoint import hit
from nvrx_core.fault.hang_report import HangReport
from nvrx_core.fault.interruption import Interruption
from nvrx_core.flow import operation
from nvrx_core.inprocess.coordination.control_store import CallStore, ControlStore
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.coordination.joining import join_for_dead
from nvrx_core.inprocess.monitor.fault_reporter import FaultReporter
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.progress_watchdog import SILENT_STORE
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.peer_progress import PeerProgress
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.store.connection import StoreConnection
from nvrx_core.store.mixin import as_client

__all__ = ["LeaseKeeper", "StoreLink", "StoreOfMonitor"]


class StoreLink:
    """The connection of all parts of the process.

    Args:
        plan: the plan of the process.
        page: the rank's progress page, which names the generation of keys.
        has_ended: whether the store has ended with the rank that hosts it: torch would try to connect for seconds.

    Attributes:
        reattaches: this process replaces one that was lost.
    """

    def __init__(self, plan: MonitorPlan, page: Page, has_ended: Callable[[], bool]) -> None:
        self.plan, self.page, self._has_ended = plan, page, has_ended
        self.reattaches = False
        self._control_store: ControlStore | None = None

    def connect(self) -> ControlStore:
        """Return the control store; opens the connection on the first call.

        Raises:
            StoreFailure: when the store cannot be reached.
        """
        if self._control_store is None:
            if self._has_ended():
                raise StoreFailure("the rank that hosts the store has ended")
            try:  # with a bound: torch would wait forever for a store that is silent, and nobody would judge the rank
                plan, silence = self.plan, int(SILENT_STORE)
                store = StoreConnection(self._open, plan.factory, plan.kwargs, silence=silence)
            except Exception as error:  # boundary: a user's store factory
                raise StoreFailure(str(error)) from error
            generation = max(0, self.page[ProgressField.GENERATION] - 1)
            self._control_store = ControlStore(GuardedStore(store), self.plan.keys.of(generation))
            if self.reattaches:
                hit("monitor-reattach", self.page[ProgressField.ITERATION])
        return self._control_store

    def join_for_dead(self) -> bool:
        """Complete the joining of a dead rank, and continue with the keys of its generation, if it has one."""
        store = self.connect().store
        keys = join_for_dead(store, self.plan.keys, self.page, self.plan.join_request)
        if keys is not None:
            self._control_store = ControlStore(store, keys)
        return keys is not None

    def _open(self) -> dist.Store:
        with as_client():
            return self.plan.factory(**self.plan.kwargs)


class LeaseKeeper:
    """This rank's lease in the store, a counter that its monitor process increments.

    The lease also contains the progress of the rank; `nvrx_core.liveness.peer_progress` has its fields. The page
    records when the store last answered.

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
        if not self.page[ProgressField.MONITOR_BEAT]:  # a rank that leaves from now on lets this process end itself
            self.page[ProgressField.MONITOR_BEAT] = time.monotonic_ns()
        if self.page[ProgressField.STAGE] == Stage.LEFT:  # meanwhile: the keys may be deleted
            return
        self._beats += 1
        self._lease = membership.move_lease(self.plan.member, self._lease, self._next())
        beats = self._lease.partition("/")[0]
        self._beats = int(beats) if beats.isdigit() else self._beats  # a replacement goes on counting
        self.page[ProgressField.MONITOR_BEAT] = time.monotonic_ns()
        if self.page[ProgressField.STAGE] == Stage.LEFT:  # since: a first lease may come after the deletion of the keys
            membership.delete_lease(self.plan.member)

    def probe(self) -> None:
        """Check whether the store answers.

        Raises:
            StoreFailure: when it does not.
        """
        self.store.connect().membership.have_left([self.plan.member])
        self.page[ProgressField.MONITOR_BEAT] = time.monotonic_ns()

    def _next(self) -> str:
        page, now = self.page, self.awake.at(time.monotonic())
        stalled = now - self.awake.at(page.alive_at()) > self.plan.timeouts.stalled_after
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


class StoreOfMonitor(CallStore):
    """The control store; the connection is opened by its first operation.

    Args:
        link: the connection.
        lease: renews the rank's lease.
        reporter: looks for kills for want of memory with each renewal.
        hang_report: returns where the rank is, whose threads do not run.
    """

    def __init__(
        self, link: StoreLink, lease: LeaseKeeper, reporter: FaultReporter, hang_report: Callable[[], HangReport]
    ) -> None:
        super().__init__(link.connect, link.page.world_size, link.plan.barrier)
        self._link, self._lease, self._reporter, self._hang_report = link, lease, reporter, hang_report

    @operation
    def move_lease(self) -> None:
        """Renew this rank's lease."""
        self._reporter.look_for_memory_kills()
        self._lease.move()

    @operation
    def probe(self) -> None:
        """Check whether the store answers."""
        self._lease.probe()

    @operation
    def report_hang(self, iteration: int) -> None:
        """Write a report of the rank, whose threads do not run, if its round was ended by a soft timeout."""
        fault = self._control_store().rounds.read_event(iteration)
        if fault is not None and fault.interruption == Interruption.SOFT_TIMEOUT.name:
            self._control_store().hangs.put(iteration, self._hang_report(), by_monitor=True)

    @operation
    def find_progress(self) -> PeerProgress:
        """Return the progress of the other members."""
        me = self._link.plan.member
        return self._link.connect().survey.slowest(self._link.page.members() - {me}, me)

    @operation
    def read_leases(self, members: Collection[InitialRank]) -> Mapping[InitialRank, str]:
        """Return the leases of those of these members that have one."""
        return self._link.connect().membership.leases(members)

    @operation
    def has_left(self, member: InitialRank) -> bool:
        """Return whether the member no longer needs the store: it was marked as left, or the call is over."""
        return self._link.connect().membership.has_left(member)

    @operation
    def join_for_dead(self) -> bool:
        """Complete the joining of the dead rank; return whether there is a generation to report its death in."""
        return self._link.join_for_dead()
