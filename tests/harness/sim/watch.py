"""The monitor process of a simulated rank: the shipped `Watch`, on a page and leases that are made up."""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Collection
from typing import TYPE_CHECKING, Final

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.monitor.judging import Detectors
from nvrx_core.inprocess.monitor.policies import CleanExitPolicy, GilStallPolicy
from nvrx_core.inprocess.monitor.sibling_ring import SiblingRing
from nvrx_core.inprocess.monitor.watch import StoreSchedule, Watch
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.hang_detector import CallRules, HangDetector
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

from .farewell import StoredFarewell
from .virtual_ports import MonitorBase, MonitorPorts, VirtualPage
from .world import NOTHING, passes, passes_until

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["MonitorPort", "SimulatedPage", "taking_over", "watch_of"]

TURN: Final = 1e-9
"""Seconds that a turn of a monitor process takes: awake time is rounded, and a deadline may be there a moment later."""
STARTS_WITHIN: Final = 5.0
"""Beats of the lease within which a monitor process has reached the store."""
HARD: Final = 2.0
"""Seconds: longer than any function takes that swallows interruptions."""


class SimulatedPage(VirtualPage):
    """The progress page of a simulated rank.

    Attributes:
        store_lost_at: when the store was found to be lost; 0.0: it is not.
    """

    def __init__(self, rank: Rank, stage: Stage) -> None:
        self.rank, self.stage, self.store_lost_at = rank, stage, 0.0
        self.hosts_store = rank.call.is_hosted_by(rank.member)
        self._living, self._siblings = list[InitialRank](), list[InitialRank]()

    @property
    def iteration(self) -> int:
        return self.rank.iteration

    def members(self) -> frozenset[InitialRank]:
        return frozenset(self.rank.call.living(self.rank.lost))

    def siblings(self) -> list[InitialRank]:
        living = self.rank.call.living(self.rank.lost)
        if living is not self._living:
            others = living[:1] if len(living) >= 100 else [each for each in living if each != self.rank.member]
            self._living, self._siblings = living, others
        return self._siblings


@functools.cache
def _rules(beat: float) -> CallRules:
    return CallRules(beat, HARD, 1.0)


def watch_of(rank: Rank, *, replaces: bool) -> Watch:
    """The watch of a rank: silence counts only in schedules in which something may fall silent."""
    options, beat = rank.call.options, rank.call.options.beat
    looks = bool(options.nodes or options.suspicions or options.pauses)
    detectors = Detectors(HangDetector(_rules(beat)), GilStallPolicy(math.inf, math.inf), CleanExitPolicy())
    schedule = StoreSchedule(heartbeat=beat if looks else math.inf, probe=math.inf, siblings=beat)
    rank.awake = AwakeClock()
    ring = SiblingRing(rank.member, 3.3 * beat, STARTS_WITHIN * beat)
    port = MonitorPort(rank)
    return Watch(
        rank.member, MonitorPorts(rank.page, port, port, port), detectors, rank.now,
        schedule=schedule, ring=ring, awake=rank.awake, replaces=replaces,
    )  # fmt: skip


async def taking_over(rank: Rank, watch: Watch) -> None:
    """Run a watch that replaces another, as `MonitorProcess._take_over` does.

    The time since its predecessor has last run is charged to nobody: the whole node may have been paused meanwhile.
    """
    rank.awake.woke(rank.beat_at, now=rank.now())
    await watch.run()


@functools.lru_cache(maxsize=256)
def _sample(iteration: int, stage: Stage, alive_at: float, noticed: bool, interrupting: bool) -> ProgressSample:
    return ProgressSample(
        iteration=iteration, stage=stage, alive_at=alive_at, noticed=noticed, interrupting=interrupting
    )


class MonitorPort(StoredFarewell, MonitorBase):
    """All ports of one rank's monitor process."""

    # The rank

    async def sleep(self, until: float) -> bool:
        rank, world = self.rank, self.rank.world
        if until > world.now and not (rank.is_dead() or rank.woken):
            await passes_until(lambda: rank.woken or rank.is_dead(), until)
        else:
            world.late += 1
            assert world.late < 10_000, f"the monitor process of {rank.member} never sleeps, and that is over"
            await passes(TURN)
        while world.now < rank.paused_until:
            await passes_until(lambda: world.now >= rank.paused_until, rank.paused_until)
        rank.woken = False
        return rank.is_dead()

    async def sample(self, out_by: float) -> ProgressSample:
        rank = self.rank
        rank.beat_at, hung_at = rank.world.now, rank.function.hung_at
        alive_at = rank.awake.at(rank.world.now if hung_at is None else hung_at)
        return _sample(
            rank.iteration, rank.page.stage, alive_at if rank.call.hangs else math.inf,
            rank.noticed == rank.iteration, rank.aborting == rank.iteration,
        )  # fmt: skip

    async def interrupt(self, reason: str) -> None:
        self.rank.function.signal()

    async def terminate(self, reason: str) -> None:
        """End the rank, unless it has died: a process that has just taken over judges it once before it learns it."""
        rank = self.rank
        if rank.is_dead():
            return
        assert rank.function.wedged, f"I12: {rank.member} is ended, and is not hung"
        rank.die(node=False)

    async def kill(self, reason: str) -> None:
        raise AssertionError(f"I12: {self.rank.member} is killed, and was not told to end")

    async def mark_store_lost(self) -> None:
        assert self.rank.call.hosting is not None, f"I14: {self.rank.name} loses a store that is nobody's"
        self.rank.page.store_lost_at = max(self.rank.now(), 1e-9)

    async def kill_without_store(self, reason: str) -> None:
        rank = self.rank
        held = rank.function.wedged or rank.function.depth
        assert held or rank.thaws_at, f"I12: {rank.name} is killed without a store, and could leave"
        rank.die(node=False)

    # Its faults

    async def describe_silence(self, member: InitialRank) -> FaultRecord:
        """A living member was paused for long enough."""
        rank = self.rank
        rank.world.note(f"{rank.member}'s monitor", f"misses {member}", rank.iteration)
        rank.call.ranks[member].resume_monitor()
        return FaultRecord(
            initial_rank=member, rank=-1, interruption=Interruption.UNRESPONSIVE.name, occurred=rank.world.now
        )

    # The store

    def move_lease(self) -> Awaitable[None]:
        leases, member = self.rank.call.leases, self.rank.member
        leases[member] = str(int(leases.get(member, "0")) + 1)
        return NOTHING

    async def read_leases(self, members: Collection[InitialRank]) -> dict[InitialRank, str]:
        leases = self.rank.call.leases
        return {member: leases[member] for member in members if member in leases}

    async def has_left(self, member: InitialRank) -> bool:
        return self.rank.call.membership.has_left(member)

    async def join_for_dead(self) -> bool:
        return self.rank.entry is None or self.rank.entry.complete_for_dead()
