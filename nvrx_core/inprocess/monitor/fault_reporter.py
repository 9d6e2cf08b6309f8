"""Creates records of the faults that a monitor process detects: those of its own rank, and silent siblings."""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import replace

from nvrx_core.events.log import boot_id
from nvrx_core.fault.attribution import Interruption
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.interpretation.interpreter import Rules
from nvrx_core.inprocess.monitor import watch_effects as effects
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.process.lifeline import describe_exit, exit_code, exit_status
from nvrx_core.process.memory import MemoryKills
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["FaultReporter"]

log = logging.getLogger("nvrx_core.inprocess.monitor.process")


class FaultReporter:
    """Describes the faults of one rank and of its siblings, and writes them to the event file.

    Args:
        plan: has the rank and the event file.
        page: its progress page.
    """

    def __init__(self, plan: MonitorPlan, page: Page) -> None:
        self.plan, self.page = plan, page
        self.memory = MemoryKills(plan.rank_pid)

    def rules(self) -> Rules:
        """Return the rules for the effects that describe a fault, or record what is not a fault."""
        return {
            effects.DescribeStall: self._stall,
            effects.DescribeDeath: self._death,
            effects.DescribeSilence: self._silence,
            effects.NoteStragglers: self._note_stragglers,
        }

    def _stall(self, effect: effects.DescribeStall) -> FaultRecord:
        fault = self._fault(Interruption.SOFT_TIMEOUT, effect.reason, self.page.alive_at())
        return self._note(fault, effect.iteration)

    def _death(self, effect: effects.DescribeDeath) -> FaultRecord:
        left = self.page[ProgressField.STAGE] == Stage.EXITED_ABNORMALLY
        status = exit_status(self.plan.rank_pid, self.plan.rank_pidfd)
        reason = "the rank left" if left else f"process {describe_exit(status)}"
        code = self.page[ProgressField.EXIT_CODE] if left else exit_code(status)
        if effect.reason is not None:
            since = self.page.alive_at() if effect.since is None else effect.since
            fault = self._fault(Interruption.HARD_TIMEOUT, f"{reason} after {effect.reason}", since)
        else:
            fault = self._fault(Interruption.TERMINATED, reason, time.monotonic())
            fault = fault.of_memory() if "SIGKILL" in reason and self.memory.rose() else fault
        return self._note(replace(fault, exit_code=code), self.page[ProgressField.ITERATION])

    def _silence(self, effect: effects.DescribeSilence) -> FaultRecord:
        return self._note(_silence(effect.member, self.plan.heartbeat_timeout), self.page[ProgressField.ITERATION])

    def _note_stragglers(self, effect: effects.NoteStragglers) -> None:
        seconds = self.plan.soft
        self.plan.events.write("straggler", effect.iteration, ranks=effect.members, seconds=seconds)
        log.warning("waited for initial ranks %s for %g s (soft_timeout)", list(effect.members), seconds)

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
