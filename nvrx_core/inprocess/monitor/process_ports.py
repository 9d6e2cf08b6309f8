"""The ports of a monitor process, and the one for its rank: the descriptors, the page, and the signals.

A stopped process (SIGSTOP) is continued only after the signal that ends it was sent. If it ran for a moment before
that, its threads would take part in the restart, which would then count a rank that is about to die.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from typing import Final

from nvrx_core.fault.hang_report import HangReport
from nvrx_core.flow import operation
from nvrx_core.hang_evidence import observe_process, report_of, with_page
from nvrx_core.inprocess.monitor.fault_reporter import FaultReporter
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.rank_page import PageOfRank
from nvrx_core.inprocess.monitor.store import StoreOfMonitor
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.process.helper_thread import HelperThread
from nvrx_core.process.lifeline import catches, is_stopped, send
from nvrx_core.process.owner_lock import OwnerLock
from nvrx_core.process.stacks import show
from nvrx_core.process.thread_wait import dead_children, wait_of
from nvrx_core.process.user_packages import user_packages
from nvrx_core.process.waiting import readable
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.sampling import take_sample
from nvrx_core.values import value

__all__ = ["MonitoredProcess", "ProcessPorts"]


log = logging.getLogger("nvrx_core.inprocess.monitor.process")
THREADS_RUN_WITHIN: Final = 2.0
"""Seconds without a sign of the rank's watchdog thread after which a call holds the GIL."""


class MonitoredProcess:
    """The process of the rank.

    Args:
        plan: the plan of the monitor process.
        page: the rank's progress page.
        awake: the awake time of the monitor process.
    """

    def __init__(self, plan: MonitorPlan, page: Page, awake: AwakeClock) -> None:
        self._plan, self._page, self._awake = plan, page, awake
        self._awaited = list[int]()

    def observe(self, lock: OwnerLock) -> None:
        """Wait from now on for the end of the process, of the thread that holds the lock, and for changed stages."""
        self._awaited = [self._plan.rank_pidfd, self._plan.wake, _end_of_owner(lock)]

    def has_ended(self) -> bool:
        """Whether the process or its main thread has ended."""
        return bool(self._readable(0.0) - {self._plan.wake})

    @operation
    def sleep(self, until: float) -> bool:
        """Wait until the rank's process ends, or its page changes, or for the time; return whether it has ended."""
        readable = self._readable(max(0.0, until - time.monotonic()) + 0.0005)
        if readable - {self._plan.wake}:
            return True
        if readable:
            os.eventfd_read(self._plan.wake)
        return False

    def _readable(self, seconds: float) -> set[int]:
        return set(readable(self._awaited, seconds))

    @operation
    def report_pause(self, seconds: float) -> None:
        """This process was paused for so many seconds, which do not count against any rank."""
        log.warning("this process has paused for %.1f s, excluded from timeouts", seconds)

    @operation
    def sample(self, out_by: float) -> ProgressSample:
        """Return the sample of the rank; it has to be out of the function by `out_by`, awake seconds."""
        return take_sample(self._page, self._awake.at, stopped=is_stopped(self._plan.rank_pid), out_by=out_by)

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
        """Send the interrupt signal, if it is handled."""
        log.debug("interrupt rank %d: %s", self._plan.member, reason)
        if catches(self._plan.rank_pid, self._plan.interrupt_signal):  # else the default action would end it
            send(self._plan.rank_pidfd, [self._plan.interrupt_signal])

    @operation
    def terminate(self, reason: str) -> None:
        """Terminate the rank, with a grace period for its signal handler."""
        plan = self._plan
        log.warning("end rank %d: %s", plan.member, reason)
        self._report_stacks()
        graceful = plan.grace > 0 and catches(plan.rank_pid, signal.SIGTERM)
        send(plan.rank_pidfd, [signal.SIGTERM, signal.SIGCONT if graceful else signal.SIGKILL])

    @operation
    def kill(self, reason: str) -> None:
        """Kill the rank, which was asked to terminate."""
        log.warning("kill rank %d: %s", self._plan.member, reason)
        send(self._plan.rank_pidfd, [signal.SIGKILL])

    @operation
    def kill_without_store(self, reason: str) -> None:
        """Kill the rank, whose death cannot be reported to the store."""
        log.error("kill rank %d: %s", self._plan.member, reason)
        self._report_stacks()
        send(self._plan.rank_pidfd, [signal.SIGKILL])

    def hang_report(self) -> HangReport:
        """Return where the rank is, whose threads do not run: the process is stopped, or a call holds the GIL.

        Its stacks are taken by a signal, which takes a tenth of a second, and half a second at most.
        """
        plan, page, now = self._plan, self._page, time.monotonic()
        page[ProgressField.HANG_REPORTED] = page[ProgressField.ITERATION] + 1  # before a signal that may end the call
        wait, alive_at = wait_of(plan.rank_pid, plan.rank_pid), page.alive_at()
        signum = plan.stacks.signum
        may_ask = not wait.stopped and signum and catches(plan.rank_pid, signum)  # else the signal would end it
        text = plan.stacks.take(plan.rank_pidfd, threads_run=False) if may_ask else ""
        found = observe_process(wait, text, user_packages())
        host, rank = socket.gethostname(), page[ProgressField.RANK]
        report = report_of(found, rank=rank, initial_rank=plan.member, pid=plan.rank_pid, host=host)
        return with_page(
            report, page, alive_at=alive_at, stalled=True, step=page[ProgressField.STEP] - 1, now=now,
            rendezvous=page[ProgressField.RENDEZVOUS_COUNT], children=dead_children(plan.rank_pid),
        )  # fmt: skip

    def _report_stacks(self) -> None:
        """Write the stacks of the rank's threads to its stderr, the event file and this process's log.

        A stopped process has none.
        """
        plan, page = self._plan, self._page
        iteration, silent = page[ProgressField.ITERATION], time.monotonic_ns() - page[ProgressField.WATCHDOG_HEARTBEAT]
        threads_run = silent < THREADS_RUN_WITHIN * 1e9
        text = "" if is_stopped(plan.rank_pid) else plan.stacks.take(plan.rank_pidfd, threads_run=threads_run)
        if not text:
            return
        log.warning("the stacks of initial rank %d:\n%s", plan.member, text)
        plan.events.write("stacks", iteration, threads=text.split("\n\n"))
        show(plan.rank_pid, f"nvrx: initial rank {plan.member} is killed; its threads:\n{text}")


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
