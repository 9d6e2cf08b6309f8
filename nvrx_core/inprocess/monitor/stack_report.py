"""The stacks of a rank's threads, reported by its monitor process before it kills the rank."""

from __future__ import annotations

import logging
import time
from typing import Final

from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.process.lifeline import is_stopped
from nvrx_core.process.stacks import show
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["report_stacks"]

log = logging.getLogger("nvrx_core.inprocess.monitor.process")
THREADS_RUN_WITHIN: Final = 2.0
"""Seconds without a sign of the rank's watchdog thread after which a call holds the GIL."""


def report_stacks(plan: MonitorPlan, page: Page) -> None:
    """Write the stacks to the rank's stderr, the event file and this process's log; a stopped process has none."""
    iteration, silent = page[ProgressField.ITERATION], time.monotonic_ns() - page[ProgressField.WATCHDOG_HEARTBEAT]
    threads_run = silent < THREADS_RUN_WITHIN * 1e9
    text = "" if is_stopped(plan.rank_pid) else plan.stacks.take(plan.rank_pidfd, threads_run=threads_run)
    if not text:
        return
    log.warning("the stacks of initial rank %d:\n%s", plan.member, text)
    plan.events.write("stacks", iteration, threads=text.split("\n\n"))
    show(plan.rank_pid, f"nvrx: initial rank {plan.member} is killed; its threads:\n{text}")
