"""Where the threads of a rank are, told by its monitor process before it kills the rank."""

from __future__ import annotations

import logging

from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.process.lifeline import is_stopped
from nvrx_core.process.stacks import show

__all__ = ["report_stacks"]

log = logging.getLogger("nvrx_core.inprocess.monitor.process")


def report_stacks(plan: MonitorPlan, iteration: int) -> None:
    """Write them to the rank's stderr, the event file and this process's log; a stopped process cannot tell."""
    text = "" if is_stopped(plan.rank_pid) else plan.stacks.take(plan.rank_pidfd)
    if not text:
        return
    log.warning("the stacks of initial rank %d:\n%s", plan.member, text)
    plan.events.write("stacks", iteration, threads=text.split("\n\n"))
    show(plan.rank_pid, f"nvrx: initial rank {plan.member} is killed; its threads:\n{text}")
