"""Tells all ranks of the faults that a monitor process finds: its own rank's, and of siblings that are silent."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

from nvrx_core.events.log import boot_id
from nvrx_core.fault.attribution import Interruption
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.interpreter import interpret
from nvrx_core.inprocess.coordination.joining import join_for_dead
from nvrx_core.inprocess.coordination.store_rules import store_rules
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.store_link import StoreLink
from nvrx_core.inprocess.protocol.death_report import DeathReport, report_death, report_unresponsive
from nvrx_core.inprocess.protocol.effects import StoreFailure
from nvrx_core.process.lifeline import describe_exit
from nvrx_core.process.memory import MemoryKills
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["FaultReporter", "HardTimeout", "Stall"]

log = logging.getLogger("nvrx_core.inprocess.monitor.process")


@dataclass(frozen=True)
class Stall:
    """A rank that lives holds the others up.

    Attributes:
        iteration: the round; the rank may be on its way into the next one.
        reason: for people.
    """

    iteration: int
    reason: str


@dataclass(frozen=True)
class HardTimeout:
    """Why the monitor process has ended the rank.

    Attributes:
        reason: for people.
        since: from when on the rank had shown no progress, monotonic seconds.
    """

    reason: str
    since: float


class FaultReporter:
    """The faults of one rank and of its siblings.

    Args:
        plan: names the rank, and where events go.
        page: its progress page.
        store: where the faults are announced.
    """

    def __init__(self, plan: MonitorPlan, page: Page, store: StoreLink) -> None:
        self.plan, self.page, self.store = plan, page, store
        self.memory = MemoryKills(plan.rank_pid)
        self._unresponsive: dict[int, FaultRecord] = {}

    def announce(self, stall: Stall) -> None:
        """Announce that this rank holds the others up."""
        fault = self._fault(Interruption.SOFT_TIMEOUT, stall.reason, occurred=self.page.alive_at())
        self._note(fault, stall.iteration)
        with suppress(StoreFailure):
            self.store.connect().rounds.announce(stall.iteration, fault)

    def report_death(self, timeout: HardTimeout | None) -> None:
        """Announce the rank's death and arrive for it, until a decision says that it is lost.

        Args:
            timeout: why this process has ended the rank; None when it has not.
        """
        page, stage = self.page, Stage(self.page[ProgressField.STAGE])
        if stage == Stage.LEFT or page[ProgressField.STORE_LOST]:
            return
        fault = self._death(stage, timeout)
        self._note(fault, page[ProgressField.ITERATION])
        if page[ProgressField.HOSTS_STORE] and stage != Stage.EXITED_ABNORMALLY:
            return  # the store has ended with the rank, though its listener may accept for some milliseconds more
        with suppress(StoreFailure):
            store = self.store.connect().store
            if (keys := join_for_dead(store, self.plan.keys, page, self.plan.entrant)) is not None:
                report = DeathReport(page[ProgressField.ITERATION], self.plan.member, page.members(), fault)
                rules = store_rules(ControlStore(store, keys), page.world_size, self.plan.barrier)
                interpret(report_death(report, time.monotonic), rules)

    def report_unresponsive(self, member: int) -> None:
        """Report a sibling whose monitor process is silent: its node is gone, or cut off."""
        page = self.page
        if member not in self._unresponsive:
            self._unresponsive[member] = _silence(member, self.plan.heartbeat_timeout)
            self._note(self._unresponsive[member], page[ProgressField.ITERATION])
        report = DeathReport(page[ProgressField.ITERATION], member, page.members(), self._unresponsive[member])
        rules = store_rules(self.store.connect(), page.world_size)
        interpret(report_unresponsive(report, time.monotonic), rules)

    def release_lost(self) -> None:
        """Mark reported siblings that are lost by now as left, so that the store's host does not wait for them."""
        for member in self._unresponsive.keys() - self.page.members():
            self.store.connect().membership.mark_left(member)
            self.store.connect().deletion.delete_if_over(self.page.world_size)
            del self._unresponsive[member]

    def _death(self, stage: Stage, timeout: HardTimeout | None) -> FaultRecord:
        reason = "the rank left" if stage == Stage.EXITED_ABNORMALLY else f"process {describe_exit(self.plan.rank_pid)}"
        if timeout is not None:
            return self._fault(Interruption.HARD_TIMEOUT, f"{reason} after {timeout.reason}", timeout.since)
        fault = self._fault(Interruption.TERMINATED, reason, time.monotonic())
        return fault.of_memory() if "SIGKILL" in reason and self.memory.rose() else fault

    def _fault(self, kind: Interruption, reason: str, occurred: float) -> FaultRecord:
        return FaultRecord(
            initial_rank=self.plan.member, rank=self.page[ProgressField.RANK], interruption=kind.name, message=reason,
            occurred=occurred, announced=time.monotonic(), wall=time.time(), boot_id=boot_id(),
            host=socket.gethostname(), pid=self.plan.rank_pid,
        )  # fmt: skip

    def _note(self, fault: FaultRecord, iteration: int) -> None:
        self.plan.events.write("fault", iteration, **fault.event_fields())
        log.warning("%s", fault)


def _silence(member: int, timeout: float) -> FaultRecord:
    now = time.monotonic()
    return FaultRecord(
        initial_rank=member, rank=-1, interruption=Interruption.UNRESPONSIVE.name,
        message=f"no sign of life for {timeout:g} s (heartbeat_timeout)", occurred=now - timeout, announced=now,
        wall=time.time(), boot_id=boot_id(), host="unknown host",
    )  # fmt: skip
