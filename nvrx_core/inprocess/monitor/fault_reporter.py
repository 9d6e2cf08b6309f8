"""Creates records of the faults that a monitor process detects: those of its own rank, and silent siblings."""

from __future__ import annotations

import logging
import math
import socket
import time
from dataclasses import replace
from typing import Final

from nvrx_core.events.log import boot_id
from nvrx_core.fault.interruption import Interruption
from nvrx_core.fault.record import FaultRecord
from nvrx_core.flow import operation
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.process.lifeline import describe_exit, exit_code, exit_status
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["FaultReporter"]

log = logging.getLogger("nvrx_core.inprocess.monitor.process")
SEEN_DEAD_WITHIN: Final = 10.0
"""Seconds in which a process that the kernel has killed is seen to end: it has its memory to give back before."""


class FaultReporter:
    """Describes the faults of one rank and of its siblings, and writes them to the event file.

    Args:
        plan: has the rank and the event file.
        page: its progress page.
    """

    def __init__(self, plan: MonitorPlan, page: Page) -> None:
        self.plan, self.page = plan, page
        self._memory_killed_at = -math.inf

    def look_for_memory_kills(self) -> None:
        """Note when the kernel has killed a process of the rank's cgroup for want of memory.

        The noted count is in the page: the first that is killed may be the monitor process before this one.
        """
        kills = self.plan.memory_kills.count()
        if kills > self.page[ProgressField.MEMORY_KILLS]:
            self.page[ProgressField.MEMORY_KILLS] = kills
            self._memory_killed_at = time.monotonic()

    @operation
    def describe_stall(self, reason: str, iteration: int) -> FaultRecord:
        """Return the fault that this rank blocks the others."""
        fault = self._fault(Interruption.SOFT_TIMEOUT, reason, self.page.alive_at())
        return self._note(fault, iteration)

    @operation
    def describe_death(self, reason: str | None, since: float | None) -> FaultRecord:
        """Return the fault record of the rank's death."""
        left = self.page[ProgressField.STAGE] == Stage.EXITED_ABNORMALLY
        status = exit_status(self.plan.rank_pid, self.plan.rank_pidfd)
        exited = "the rank left" if left else f"process {describe_exit(status)}"
        code = self.page[ProgressField.EXIT_CODE] if left else exit_code(status)
        if reason is not None:
            since = self.page.alive_at() if since is None else since
            fault = self._fault(Interruption.HARD_TIMEOUT, f"{exited} after {reason}", since)
        else:
            fault = self._fault(Interruption.TERMINATED, exited, time.monotonic())
            if "SIGKILL" in exited:
                self.look_for_memory_kills()
                was_short = time.monotonic() - self._memory_killed_at <= SEEN_DEAD_WITHIN
                fault = fault.of_memory() if was_short else fault
        return self._note(replace(fault, exit_code=code), self.page[ProgressField.ITERATION])

    @operation
    def describe_silence(self, member: InitialRank) -> FaultRecord:
        """Return the fault that a sibling's monitor process is silent."""
        return self._note(_silence(member, self.plan.timeouts.heartbeat_timeout), self.page[ProgressField.ITERATION])

    @operation
    def note_stragglers(self, iteration: int, members: tuple[InitialRank, ...]) -> None:
        """Record that the rank waits for members that are behind it."""
        seconds = self.plan.timeouts.soft
        self.plan.events.write("straggler", iteration, ranks=members, seconds=seconds)
        log.warning("waited for initial ranks %s for %g s (soft_timeout)", list(members), seconds)

    def _fault(self, kind: Interruption, reason: str, occurred: float) -> FaultRecord:
        return FaultRecord(
            initial_rank=self.plan.member, rank=self.page[ProgressField.RANK], interruption=kind.name, message=reason,
            occurred=occurred, announced=time.monotonic(), wall=time.time(), boot_id=boot_id(),
            host=socket.gethostname(), pid=self.plan.rank_pid,
        )  # fmt: skip

    def _note(self, fault: FaultRecord, iteration: int) -> FaultRecord:
        self.plan.events.write("fault", iteration, **fault.event_fields())
        log.warning("%s", fault)
        return fault


def _silence(member: InitialRank, timeout: float) -> FaultRecord:
    now = time.monotonic()
    return FaultRecord(
        initial_rank=member, rank=-1, interruption=Interruption.UNRESPONSIVE.name,
        message=f"no sign of life for {timeout:g} s (heartbeat_timeout)", occurred=now - timeout, announced=now,
        wall=time.time(), boot_id=boot_id(), host="unknown host",
    )  # fmt: skip
