"""The flow of a monitor process: watch one rank until it has left, or its death is known to all. Pure.

In each turn it judges the rank and executes the due tasks in the store; then it sleeps until the next deadline. All
state that must survive is on the page or in the store, so that a replacement continues where its predecessor stopped.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.monitor.judging import Detectors, Judging
from nvrx_core.inprocess.monitor.ports import WatchPorts
from nvrx_core.inprocess.monitor.sibling_ring import SiblingRing
from nvrx_core.inprocess.protocol.death_report import DeathReport, report_death, report_unresponsive
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["StoreSchedule", "StoreTask", "Watch"]


STORE_GRACE: Final = 15.0
"""Seconds that a rank has to leave after the store was lost. Two of its threads may be connecting again, one after the
other: torch cannot be interrupted there, and a process that exits meanwhile is terminated by SIGABRT."""
_ENDED: Final = (Stage.LEFT, Stage.EXITED_ABNORMALLY)


class Watch:
    """One rank's watch.

    Args:
        member: its initial rank.
        ports: the page, the rank, the store.
        detectors: judge the rank.
        now: monotonic seconds.
        schedule: determines when to use the store.
        ring: determines which siblings to observe, and which are unresponsive.
        awake: the time in which silence is measured.
        replaces: the process replaces a lost one, which may have reported the rank's death.
    """

    def __init__(
        self,
        member: InitialRank,
        ports: WatchPorts,
        detectors: Detectors,
        now: Callable[[], float],
        *,
        schedule: StoreSchedule,
        ring: SiblingRing,
        awake: AwakeClock,
        replaces: bool = False,
    ) -> None:
        self.member, self.ports, self.page, self.now = member, ports, ports.page, now
        self.detectors, self.schedule, self.ring, self.awake, self.replaces = detectors, schedule, ring, awake, replaces
        self.judging = Judging(detectors, ports, self._awake_now)
        self.unresponsive: dict[InitialRank, FaultRecord] = {}

    async def run(self) -> None:
        """Watch until the rank has left, or is dead and its death is known to all."""
        while self.page.stage not in _ENDED:
            due = await self._turn()
            ended = await self.ports.rank.sleep(due)
            pause = self.awake.woke(due, now=self.now())
            if pause > 0:
                await self.ports.rank.report_pause(pause)
            if ended:
                await self.ports.rank.disown_page()
                await self._report_death()
                return
        try:
            await self._release_lost()
        except StoreFailure:
            return  # nobody is left whom to tell
        if self.page.stage is Stage.EXITED_ABNORMALLY:
            await self._report_death()

    def _awake_now(self) -> float:
        return self.awake.at(self.now())

    async def _turn(self) -> float:
        """Execute what is due; return when the next turn is, monotonic seconds."""
        page, store_due = self.page, math.inf
        sample = await self.judging.judge()
        if page.stage is not Stage.OUTSIDE and not page.store_lost_at:
            await self._use_store(sample)
            store_due = self.schedule.deadline
        if page.store_lost_at:
            if self._awake_now() >= self.awake.at(page.store_lost_at) + STORE_GRACE:
                await self.ports.rank.kill_without_store("it did not leave after the store was lost")
            store_due = math.inf
        return min(self.awake.when(self.detectors.deadline), store_due)

    async def _use_store(self, sample: ProgressSample) -> None:
        """Execute the due tasks in the store, and judge the rank by it; if a task fails, the store is lost."""
        try:
            for task in self.schedule.due(now=self.now()):
                if task is StoreTask.MOVE_LEASE:
                    await self.ports.store.move_lease()
                elif task is StoreTask.PROBE:
                    await self.ports.store.probe()
                else:
                    await self._release_lost()
                    for member in await self._silent():
                        await self._report_unresponsive(member)
        except StoreFailure:
            if not self.page.store_lost_at:
                await self.ports.rank.mark_store_lost()
            return
        with suppress(StoreFailure):
            await self.judging.judge_by_store(sample)

    # The siblings

    async def _silent(self) -> list[InitialRank]:
        """Return the siblings whose monitor process is silent and that have not left."""
        page, ring, siblings, silent = self.page, self.ring, self.page.siblings(), list[InitialRank]()
        if not siblings or page.stage is Stage.LEFT:
            return silent
        now = self._awake_now()
        watched = ring.watched(siblings, now=now)
        all_have_arrived = page.iteration >= 0
        leases = await self.ports.store.read_leases(watched)
        for member in ring.observe(watched, leases, all_have_arrived=all_have_arrived, now=now):
            if not await self.ports.store.has_left(member):
                silent.append(member)
        return silent

    async def _report_unresponsive(self, member: InitialRank) -> None:
        """Report a sibling whose monitor process is silent: its node is lost or disconnected."""
        if member not in self.unresponsive:
            self.unresponsive[member] = await self.ports.reports.describe_silence(member)
        report = DeathReport(self.page.iteration, member, self.page.members(), self.unresponsive[member])
        await report_unresponsive(report, self.member, self.ports.store)

    async def _release_lost(self) -> None:
        """Mark reported siblings that are lost by now as left, so that the store's host does not wait for them."""
        if not self.unresponsive:
            return
        for member in sorted(self.unresponsive.keys() - self.page.members()):
            await self.ports.store.mark_left(member, silent=True)
            await self.ports.store.delete_if_over()
            del self.unresponsive[member]

    # The end

    async def _report_death(self) -> None:
        """Announce the rank's death and arrive for it, until a decision lists it as lost."""
        page, since = self.page, self.detectors.hangs.no_progress_since
        stage = page.stage
        if stage is Stage.LEFT or page.store_lost_at:
            return
        reason = self.judging.ended_for
        moment = self.awake.when(since) if reason is not None and since is not None else None
        fault = await self.ports.reports.describe_death(reason, moment)
        if page.hosts_store and stage is not Stage.EXITED_ABNORMALLY:
            return  # the store has ended with the rank, though its listener may accept for some milliseconds more
        try:
            if not await self.ports.store.join_for_dead():
                return
            if await self._has_left():
                await self.ports.store.delete_if_over()
            else:
                report = DeathReport(page.iteration, self.member, page.members(), fault)
                await report_death(report, self.ports.store)
        except StoreFailure:
            return

    async def _has_left(self) -> bool:
        """Whether the rank was marked as left: by itself just before its death, or by a predecessor that reported it.

        Then no rank waits for a report, and the decision that the report would wait for may be deleted. A rank that
        dies in its function has not left, so the first process that reports this does not wait for the store's answer.
        """
        if self.page.stage is Stage.RUNNING and not self.replaces:
            return False
        return await self.ports.store.has_left(self.member)


class StoreTask(enum.Enum):
    """The tasks that use the store."""

    MOVE_LEASE = enum.auto()
    PROBE = enum.auto()
    """Ask anything, to learn whether the store answers."""
    WATCH_SIBLINGS = enum.auto()


class StoreSchedule:
    """The schedule of one process; monotonic seconds.

    Args:
        heartbeat: between two renewals of the lease.
        probe: between two uses of the store, at most.
        siblings: the minimum between two observations of the siblings' leases; one follows a use of the store.

    Attributes:
        deadline: when the next task is due.
    """

    def __init__(self, *, heartbeat: float, probe: float, siblings: float) -> None:
        self.heartbeat, self.probe, self.siblings = heartbeat, probe, siblings
        self.deadline = self._lease_at = self._siblings_at = -math.inf

    def due(self, *, now: float) -> tuple[StoreTask, ...]:
        """Return the tasks that are due, in order; they count as done."""
        if now < self.deadline:
            return ()
        moves, watches = now >= self._lease_at, now >= self._siblings_at
        if moves:
            self._lease_at = now + self.heartbeat
        if watches:
            self._siblings_at = now + self.siblings
        self.deadline = min(self._lease_at, now + self.probe)
        first = StoreTask.MOVE_LEASE if moves else StoreTask.PROBE
        return (first, StoreTask.WATCH_SIBLINGS) if watches else (first,)
