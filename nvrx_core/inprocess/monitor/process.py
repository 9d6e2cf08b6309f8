"""The monitor process: watches one rank from outside, ends it when it is hung, and reports its death.

`Watch` is its flow, and `process_ports` what the flow uses. It waits for the rank's pidfd, for an eventfd that the rank
writes to at each change of stage, and for one that reports the end of its main thread.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Final

from nvrx_core.failpoint import hit
from nvrx_core.flow import run
from nvrx_core.inprocess.monitor.fault_reporter import FaultReporter
from nvrx_core.inprocess.monitor.files import configure_logging, write_pidfile
from nvrx_core.inprocess.monitor.judging import Detectors
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.policies import CleanExitPolicy, GilStallPolicy, UnheardRoundPolicy
from nvrx_core.inprocess.monitor.process_ports import MonitoredProcess, ProcessPorts
from nvrx_core.inprocess.monitor.rank_page import PageOfRank
from nvrx_core.inprocess.monitor.sibling_ring import SiblingRing
from nvrx_core.inprocess.monitor.store import LeaseKeeper, StoreLink, StoreOfMonitor
from nvrx_core.inprocess.monitor.watch import StoreSchedule, Watch
from nvrx_core.inprocess.progress_watchdog import SILENT_STORE
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.hang_detector import CallRules, HangDetector
from nvrx_core.process.fork_server import STARTS_WITHIN
from nvrx_core.process.owner_lock import OwnerLock
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["MonitorProcess"]

log = logging.getLogger("nvrx_core.inprocess.monitor.process")
PROBE_EVERY: Final = SILENT_STORE / 4
"""Seconds between two uses of the store, at most: a lease may move more rarely than the store may be silent."""
ON_ENTRY: Final = -1
"""The iteration to which the start of a rank's first monitor process belongs, however late it is."""


class MonitorProcess:
    """Runs a `Watch`.

    Args:
        plan: the plan of the process.
        page: the rank's progress page.
        lock: held by the rank's main thread while it runs.
    """

    def __init__(self, plan: MonitorPlan, page: Page, lock: OwnerLock) -> None:
        self.plan, self.page, self.lock, self.awake = plan, page, lock, AwakeClock()
        self._rank = MonitoredProcess(plan, page, self.awake)
        self.store = StoreLink(plan, page, self._host_has_ended)
        self.lease = LeaseKeeper(plan, page, self.store, self.awake)
        self.reporter = FaultReporter(plan, page)

    def run(self, ready: Callable[[], None]) -> None:
        """Watch the rank until it has left, or its death is known to all.

        Args:
            ready: called when the rank is watched.
        """
        configure_logging(self.plan.logfile)
        try:
            self._rank.observe(self.lock)
            self._take_over()
            ready()
            self._watch()
        except BaseException:  # boundary: the process ends; its replacement goes on
            log.exception("the monitor process of rank %d failed", self.plan.member)
            raise

    def _take_over(self) -> None:
        """Register as the rank's monitor process.

        The time since its predecessor's last heartbeat, or all time before the first one, does not count: the machine
        may have been paused, which the rank did not notice either.
        """
        write_pidfile(self.plan.pidfile)
        self.store.reattaches = bool(self.page[ProgressField.MONITOR_PID])
        self.awake.woke(self.page[ProgressField.MONITOR_BEAT] / 1e9, now=time.monotonic())
        self.page[ProgressField.MONITOR_PID] = os.getpid()
        os.eventfd_write(self.plan.started, 1)
        log.info("monitor_process pid=%d of rank %d, target_pid=%d", os.getpid(), self.plan.member, self.plan.rank_pid)
        hit("monitor-ready", self.page[ProgressField.ITERATION] if self.store.reattaches else ON_ENTRY)

    def _watch(self) -> None:
        page, store = (
            PageOfRank(self.page, self.plan.member),
            StoreOfMonitor(self.store, self.lease, self.reporter, self._rank.hang_report),
        )
        ports = ProcessPorts(page, self._rank, self.reporter, store)
        plan, timeouts = self.plan, self.plan.timeouts
        detectors = Detectors(
            HangDetector(CallRules(timeouts.soft, timeouts.hard, plan.grace, plan.interval)),
            GilStallPolicy(silent=timeouts.gil_silence, confirm=timeouts.after_soft),
            CleanExitPolicy(),
            UnheardRoundPolicy(
                every=timeouts.unheard_query_interval,
                renews_after=timeouts.unheard_renewal,
                ends_after=timeouts.unheard_end,
            ),
        )
        schedule = StoreSchedule(
            heartbeat=timeouts.lease_interval, probe=PROBE_EVERY, siblings=timeouts.sibling_interval
        )
        ring = SiblingRing(plan.member, timeouts.heartbeat_timeout, STARTS_WITHIN)
        watch = Watch(
            plan.member, ports, detectors, time.monotonic,
            schedule=schedule, ring=ring, awake=self.awake, replaces=self.store.reattaches,
        )  # fmt: skip
        run(watch.run())

    def _host_has_ended(self) -> bool:
        """Whether the store has ended with the rank: its listener may accept until the kernel has freed the memory."""
        return bool(self.page[ProgressField.HOSTS_STORE]) and self._rank.has_ended()
