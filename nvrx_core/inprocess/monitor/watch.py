"""The flow of a monitor process: watch one rank until it has left, or its death is known to all. Pure.

In each turn it judges the rank and executes the due tasks in the store; then it sleeps until the next deadline. All
state that must survive is on the page or in the store, so that a replacement continues where its predecessor stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.monitor import watch_effects as effects
from nvrx_core.inprocess.monitor.judging import Judges, Judging, Stall
from nvrx_core.inprocess.monitor.sibling_ring import SiblingRing
from nvrx_core.inprocess.monitor.store_schedule import StoreSchedule, StoreTask
from nvrx_core.inprocess.monitor.watch_effects import RankPage
from nvrx_core.inprocess.protocol.actions import Announce
from nvrx_core.inprocess.protocol.death_report import DeathReport, report_death, report_unresponsive
from nvrx_core.inprocess.protocol.effects import DeleteIfOver, Flow, MarkLeft, StoreFailure, StoreOperation
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["Parts", "Watch"]

STORE_GRACE: Final = 15.0
"""Seconds that a rank has to leave after the store was lost. Two of its threads may be connecting again, one after the
other: torch cannot be interrupted there, and a process that exits meanwhile is terminated by SIGABRT."""
_ENDED: Final = (Stage.LEFT, Stage.EXITED_ABNORMALLY)


@dataclass
class Parts:
    """The machines of one monitor process.

    Attributes:
        judges: judge the rank.
        schedule: determines when to use the store.
        ring: determines which siblings to observe, and which are unresponsive.
        awake: the time in which silence is measured.
        interval: seconds between two samples of the page, at most.
        replaces: the process replaces a lost one, which may have reported the rank's death.
    """

    judges: Judges
    schedule: StoreSchedule
    ring: SiblingRing
    awake: AwakeClock
    interval: float
    replaces: bool = False


class Watch:
    """One rank's watch.

    Args:
        member: its initial rank.
        page: the progress page of the rank.
        parts: the machines.
        now: monotonic seconds.
    """

    def __init__(self, member: InitialRank, page: RankPage, parts: Parts, now: Callable[[], float]) -> None:
        self.member, self.page, self.parts, self.now = member, page, parts, now
        self.judging = Judging(parts.judges, page, self._awake)
        self.unresponsive: dict[InitialRank, FaultRecord] = {}

    def run(self) -> Flow[None]:
        """Watch until the rank has left, or is dead and its death is known to all."""
        while self.page.stage not in _ENDED:
            due = yield from self._turn()
            ended = yield effects.Sleep(due)
            pause = self.parts.awake.woke(due, now=self.now())
            if pause > 0:
                yield effects.ReportPause(pause)
            if ended:
                yield effects.DisownPage()
                yield from self._report_death()
                return
        try:
            yield from self._release_lost()
        except StoreFailure:
            return  # nobody is left whom to tell
        if self.page.stage is Stage.EXITED_ABNORMALLY:
            yield from self._report_death()

    def _awake(self) -> float:
        return self.parts.awake.at(self.now())

    def _turn(self) -> Flow[float]:
        """Execute what is due; return when the next turn is, monotonic seconds."""
        parts, page, store_due = self.parts, self.page, math.inf
        stall = yield from self.judging.judge()
        if stall is not None:
            yield from self._announce(stall)
        yield from self.judging.help_stalled()
        if page.stage is not Stage.OUTSIDE and not page.store_lost_at:
            yield from self._use_store()
            store_due = parts.schedule.deadline
        if page.store_lost_at:
            if self._awake() >= parts.awake.at(page.store_lost_at) + STORE_GRACE:
                yield effects.KillWithoutStore("it did not leave after the store was lost")
            store_due = math.inf
        longest = min(parts.interval, page.look_within)
        return min(parts.awake.when(parts.judges.deadline), self.now() + longest, store_due)

    def _announce(self, stall: Stall) -> Flow[None]:
        """Announce that this rank blocks the others."""
        fault = yield effects.DescribeStall(stall.reason, stall.iteration)
        try:
            yield StoreOperation(Announce(fault), stall.iteration)
        except StoreFailure:
            return  # the next task in the store finds that it is lost

    def _use_store(self) -> Flow[None]:
        """Execute the due tasks in the store; if one fails, the store is lost."""
        try:
            for task in self.parts.schedule.due(now=self.now()):
                yield from self._perform(task)
        except StoreFailure:
            if not self.page.store_lost_at:
                yield effects.MarkStoreLost()
            return
        try:
            yield from self.judging.check_round()
            stall = yield from self.judging.look_who_waits()
        except StoreFailure:
            return
        if stall is not None:
            yield from self._announce(stall)

    def _perform(self, task: StoreTask) -> Flow[None]:
        if task is StoreTask.MOVE_LEASE:
            yield effects.MoveLease()
        elif task is StoreTask.PROBE:
            yield effects.ProbeStore()
        else:
            yield from self._release_lost()
            for member in (yield from self._silent()):
                yield from self._report_unresponsive(member)

    # The siblings

    def _silent(self) -> Flow[list[InitialRank]]:
        """Return the siblings whose monitor process is silent and that have not left."""
        page, ring, siblings, silent = self.page, self.parts.ring, self.page.siblings(), list[InitialRank]()
        if not siblings or page.stage is Stage.LEFT:
            return silent
        now = self._awake()
        watched = ring.watched(siblings, now=now)
        all_have_arrived = page.iteration >= 0
        leases = yield effects.ReadLeases(watched)
        for member in ring.observe(watched, leases, all_have_arrived=all_have_arrived, now=now):
            if not (yield effects.HasLeft(member)):
                silent.append(member)
        return silent

    def _report_unresponsive(self, member: InitialRank) -> Flow[None]:
        """Report a sibling whose monitor process is silent: its node is lost or disconnected."""
        if member not in self.unresponsive:
            self.unresponsive[member] = yield effects.DescribeSilence(member)
        report = DeathReport(self.page.iteration, member, self.page.members(), self.unresponsive[member])
        yield from report_unresponsive(report, self.member, self.now)

    def _release_lost(self) -> Flow[None]:
        """Mark reported siblings that are lost by now as left, so that the store's host does not wait for them."""
        if not self.unresponsive:
            return
        for member in sorted(self.unresponsive.keys() - self.page.members()):
            yield MarkLeft(member, silent=True)
            yield DeleteIfOver()
            del self.unresponsive[member]

    # The end

    def _report_death(self) -> Flow[None]:
        """Announce the rank's death and arrive for it, until a decision lists it as lost."""
        page, since = self.page, self.parts.judges.hangs.no_progress_since
        stage = page.stage
        if stage is Stage.LEFT or page.store_lost_at:
            return
        reason = self.judging.ended_for
        moment = self.parts.awake.when(since) if reason is not None and since is not None else None
        fault = yield effects.DescribeDeath(reason, moment)
        if page.hosts_store and stage is not Stage.EXITED_ABNORMALLY:
            return  # the store has ended with the rank, though its listener may accept for some milliseconds more
        try:
            if not (yield effects.JoinForDead()):
                return
            if (yield from self._has_left()):
                yield DeleteIfOver()
            else:
                yield from report_death(DeathReport(page.iteration, self.member, page.members(), fault), self.now)
        except StoreFailure:
            return

    def _has_left(self) -> Flow[bool]:
        """Whether the rank was marked as left: by itself just before its death, or by a predecessor that reported it.

        Then no rank waits for a report, and the decision that the report would wait for may be deleted. A rank that
        dies in its function has not left, so the first process that reports this does not wait for the store's answer.
        """
        if self.page.stage is Stage.RUNNING and not self.parts.replaces:
            return False
        has_left: bool = yield effects.HasLeft(self.member)
        return has_left
