"""The ports of a monitor process: its rank, with the clock, the descriptors and the page, and the control store."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping
from select import POLLIN, poll

from nvrx_core.flow import operation
from nvrx_core.inprocess.coordination.control_store import CallStore
from nvrx_core.inprocess.monitor.fault_reporter import FaultReporter
from nvrx_core.inprocess.monitor.lease_keeper import LeaseKeeper
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.rank_page import PageOfRank
from nvrx_core.inprocess.monitor.rank_signals import RankSignals
from nvrx_core.inprocess.monitor.sample import take_sample
from nvrx_core.inprocess.monitor.store_link import StoreLink
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.hang_detector import ProgressSample
from nvrx_core.liveness.peer_progress import PeerProgress
from nvrx_core.process.helper_thread import HelperThread
from nvrx_core.process.owner_lock import OwnerLock
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.values import value

__all__ = ["MonitoredProcess", "ProcessPorts", "StoreOfMonitor"]

log = logging.getLogger("nvrx_core.inprocess.monitor.process")


class MonitoredProcess:
    """The process of the rank.

    Args:
        plan: the plan of the monitor process.
        page: the rank's progress page.
        awake: the awake time of the monitor process.
    """

    def __init__(self, plan: MonitorPlan, page: Page, awake: AwakeClock) -> None:
        self._plan, self._page, self._awake = plan, page, awake
        self._signals = RankSignals(plan, page)
        self._poll = poll()

    def observe(self, lock: OwnerLock) -> None:
        """Wait from now on for the end of the process, of the thread that holds the lock, and for changed stages."""
        for fd in (self._plan.rank_pidfd, self._plan.wake, _end_of_owner(lock)):
            self._poll.register(fd, POLLIN)

    def has_ended(self) -> bool:
        """Whether the process or its main thread has ended."""
        return bool(self._readable(0.0) - {self._plan.wake})

    @operation
    def sleep(self, until: float) -> bool:
        """Wait until the rank's process ends, or its page changes, or for the time; return whether it has ended."""
        readable = self._readable(max(0.0, until - time.monotonic()) * 1000 + 0.5)
        if readable - {self._plan.wake}:
            return True
        if readable:
            os.eventfd_read(self._plan.wake)
        return False

    def _readable(self, milliseconds: float) -> set[int]:
        return {fd for fd, _ in self._poll.poll(milliseconds)}

    @operation
    def report_pause(self, seconds: float) -> None:
        """This process was paused for so many seconds, which do not count against any rank."""
        log.warning("this process has paused for %.1f s, which no rank is blamed for", seconds)

    @operation
    def sample(self, out_by: float) -> ProgressSample:
        """Return the sample of the rank; it has to be out of the function by `out_by`, awake seconds."""
        return take_sample(self._page, self._plan.rank_pid, self._awake, out_by)

    @operation
    def mark_stalled(self, iteration: int) -> None:
        """Write to the page that the rank is reported in the iteration."""
        self._page[ProgressField.STALLED] = iteration + 1

    @operation
    def mark_round_over(self, iteration: int) -> None:
        """Write to the page that the round is over."""
        self._page[ProgressField.ROUND_OVER] = iteration + 1

    @operation
    def mark_store_lost(self) -> None:
        """Write to the page that the store is lost."""
        self._page[ProgressField.STORE_LOST] = time.monotonic_ns()

    @operation
    def renew_connections(self, reason: str) -> None:
        """Write to the page that the rank does not hear of the end of its iteration: it opens its connections again."""
        log.warning("rank %d is asked to open its connections again: %s", self._plan.member, reason)
        self._page[ProgressField.UNHEARD_AT] = time.monotonic_ns()

    @operation
    def disown_page(self) -> None:
        """Stop writing to the page: it may be used by the next rank."""
        self._page.disown()

    @operation
    def interrupt(self, reason: str) -> None:
        """Send the interrupt signal."""
        self._signals.interrupt(reason)

    @operation
    def terminate(self, reason: str) -> None:
        """Terminate the rank, with a grace period for its signal handler."""
        self._signals.terminate(reason)

    @operation
    def kill(self, reason: str) -> None:
        """Kill the rank, which was asked to terminate."""
        self._signals.kill(reason)

    @operation
    def kill_without_store(self, reason: str) -> None:
        """Kill the rank, whose death cannot be reported to the store."""
        self._signals.kill_without_store(reason)


class StoreOfMonitor(CallStore):
    """The control store; the connection is opened by its first operation.

    Args:
        link: the connection.
        lease: renews the rank's lease.
        reporter: notes the memory's state with each renewal.
    """

    def __init__(self, link: StoreLink, lease: LeaseKeeper, reporter: FaultReporter) -> None:
        super().__init__(link.connect, link.page.world_size, link.plan.barrier)
        self._link, self._lease, self._reporter = link, lease, reporter

    @operation
    def move_lease(self) -> None:
        """Renew this rank's lease."""
        self._reporter.memory.note()
        self._lease.move()

    @operation
    def probe(self) -> None:
        """Check whether the store answers."""
        self._lease.probe()

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


@value
class ProcessPorts:
    """The ports of the process."""

    page: PageOfRank
    rank: MonitoredProcess
    reports: FaultReporter
    store: StoreOfMonitor


def _end_of_owner(lock: OwnerLock) -> int:
    """Return a descriptor that becomes readable as soon as the thread that holds the lock has ended."""
    gone = os.eventfd(0, os.EFD_CLOEXEC)

    def wait() -> None:
        if lock.wait():
            os.eventfd_write(gone, 1)

    HelperThread(wait, name="nvrx-owner-lock").start()
    return gone
