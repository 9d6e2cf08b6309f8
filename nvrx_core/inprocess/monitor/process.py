"""The monitor process: watches one rank from outside, ends it when it is hung, and reports its death.

One loop, one connection to the store. The loop waits on the rank's pidfd, on an eventfd that the rank writes to at each
change of stage, and on one that tells of the end of its main thread. In between it asks its parts, each of which does
one thing. What a part must not forget is on the page or in the store, so that a replacement goes on where its
predecessor ended.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nvrx_core.failpoint import hit
from nvrx_core.inprocess.monitor.clean_exit_monitor import CleanExitMonitor
from nvrx_core.inprocess.monitor.fault_reporter import FaultReporter
from nvrx_core.inprocess.monitor.files import configure_logging, write_pidfile
from nvrx_core.inprocess.monitor.gil_stall_monitor import GilStallMonitor
from nvrx_core.inprocess.monitor.hang_monitor import HangMonitor
from nvrx_core.inprocess.monitor.lease_keeper import LeaseKeeper
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.sample import take_sample
from nvrx_core.inprocess.monitor.sibling_monitor import SiblingMonitor
from nvrx_core.inprocess.monitor.store_link import StoreLink
from nvrx_core.inprocess.monitor.store_schedule import StoreSchedule, StoreTask
from nvrx_core.inprocess.progress_watchdog import SILENT_STORE
from nvrx_core.inprocess.protocol.effects import StoreFailure
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.process.owner_lock import OwnerLock
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.sampling import look_within
from nvrx_core.progress.stage import Stage

__all__ = ["MonitorProcess"]

log = logging.getLogger("nvrx_core.inprocess.monitor.process")
PROBE_EVERY: Final = SILENT_STORE / 4
"""Seconds between two uses of the store, at most: a lease may move more rarely than the store may be silent."""


class MonitorProcess:
    """The main loop, and its parts.

    Args:
        plan: what to watch and how.
        page: the rank's progress page.
        lock: held by the rank's main thread as long as it lives.
    """

    def __init__(self, plan: MonitorPlan, page: Page, lock: OwnerLock) -> None:
        self.plan, self.page, self.lock, self.awake = plan, page, lock, AwakeClock()
        self.store = StoreLink(plan, page)
        self.hangs = HangMonitor(plan, page, self.store, self.awake)
        self.gil_stalls = GilStallMonitor(plan, page, self.store)
        self.clean_exit = CleanExitMonitor(plan, page, self.store)
        self.lease = LeaseKeeper(plan, page, self.store, self.awake)
        self.siblings = SiblingMonitor(plan, page, self.store)
        self.reporter = FaultReporter(plan, page, self.store)
        self.schedule = StoreSchedule(
            heartbeat=plan.heartbeat,
            probe=PROBE_EVERY,
            siblings=max(plan.heartbeat, plan.heartbeat_timeout / 10),
        )

    def run(self, ready: Callable[[], None]) -> None:
        """Watch until the rank has left, or is dead and its death is known to all.

        Args:
            ready: called when the rank is watched.
        """
        configure_logging(self.plan.logfile)
        try:
            self._take_over()
            ready()
            self._watch()
        except BaseException:  # boundary: the process ends; its replacement goes on
            log.exception("the monitor process of rank %d failed", self.plan.member)
            raise

    def _take_over(self) -> None:
        """Register as the rank's monitor process; the time since its predecessor's last beat is charged to nobody."""
        if self.plan.pidfile:
            write_pidfile(self.plan.pidfile)
        if self.page[ProgressField.MONITOR_PID]:
            self.store.reattaches = True
            self.awake.woke(self.page[ProgressField.MONITOR_BEAT] / 1e9, now=time.monotonic())
        self.page[ProgressField.MONITOR_PID] = os.getpid()
        log.info("monitor_process pid=%d of rank %d, target_pid=%d", os.getpid(), self.plan.member, self.plan.rank_pid)
        hit("monitor-ready", self.page[ProgressField.ITERATION])

    def _watch(self) -> None:
        poll = select.poll()
        for fd in (self.plan.rank_pidfd, self.plan.wake, _end_of_owner(self.lock)):
            poll.register(fd, select.POLLIN)
        while self.page[ProgressField.STAGE] not in (Stage.LEFT, Stage.EXITED_ABNORMALLY):
            due = self._turn()
            readable = {fd for fd, _ in poll.poll(max(0.0, due - time.monotonic()) * 1000 + 0.5)}
            if (pause := self.awake.woke(due, now=time.monotonic())) > 0:
                log.warning("this process has paused for %.1f s, which no rank is blamed for", pause)
            if readable - {self.plan.wake}:
                self.page.disown()  # it may become the next rank's
                self.reporter.report_death(self.hangs.hard_timeout())
                return
            if readable:
                os.eventfd_read(self.plan.wake)
        with suppress(StoreFailure):
            self.reporter.release_lost()
        if self.page[ProgressField.STAGE] == Stage.EXITED_ABNORMALLY:
            self.reporter.report_death(self.hangs.hard_timeout())

    def _turn(self) -> float:
        """Do what is due; returns when the next turn is, monotonic seconds."""
        if stall := self.hangs.judge(self.gil_stalls.policy.out_by):
            self.reporter.announce(stall)
        self.gil_stalls.act(take_sample(self.page, self.plan.rank_pid, self.awake), now=self._now())
        store_due = math.inf
        if self.page[ProgressField.STAGE] != Stage.OUTSIDE and not self.page[ProgressField.STORE_LOST]:
            self._use_store()
            store_due = self.schedule.deadline
        if self.page[ProgressField.STORE_LOST]:
            self.hangs.enforce_store_loss()
            store_due = math.inf
        deadlines = self.hangs.deadline, self.gil_stalls.policy.deadline, self.clean_exit.policy.deadline
        longest = min(self.plan.interval, look_within(self.page))
        return min(self.awake.when(min(deadlines)), time.monotonic() + longest, store_due)

    def _use_store(self) -> None:
        """Do what is due in the store; a failure of the schedule's tasks is the loss of the store."""
        try:
            for task in self.schedule.due(now=time.monotonic()):
                self._perform(task)
        except StoreFailure:
            if not self.page[ProgressField.STORE_LOST]:
                self.page[ProgressField.STORE_LOST] = time.monotonic_ns()
            return
        with suppress(StoreFailure):
            if stall := self.clean_exit.check(now=self._now()):
                self.reporter.announce(stall)

    def _perform(self, task: StoreTask) -> None:
        match task:
            case StoreTask.MOVE_LEASE:
                self.reporter.memory.note()
                self.lease.move()
            case StoreTask.PROBE:
                self.lease.probe()
            case StoreTask.WATCH_SIBLINGS:
                self.reporter.release_lost()
                for member in self.siblings.unresponsive(now=self._now()):
                    self.reporter.report_unresponsive(member)

    def _now(self) -> float:
        """The awake time, in which silence is measured."""
        return self.awake.at(time.monotonic())


def _end_of_owner(lock: OwnerLock) -> int:
    """Return a descriptor that becomes readable as soon as the thread that holds the lock is gone."""
    gone = os.eventfd(0, os.EFD_CLOEXEC)

    def wait() -> None:
        if lock.wait():
            os.eventfd_write(gone, 1)

    threading.Thread(target=wait, name="nvrx-owner-lock", daemon=True).start()
    return gone
