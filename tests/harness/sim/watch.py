"""The monitor process of a simulated rank: the shipped `Watch`, on a page and leases that are made up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.monitor import watch_effects
from nvrx_core.inprocess.monitor.clean_exit import CleanExitPolicy
from nvrx_core.inprocess.monitor.gil_stall import GilStallPolicy
from nvrx_core.inprocess.monitor.judging import Judges
from nvrx_core.inprocess.monitor.sibling_ring import SiblingRing
from nvrx_core.inprocess.monitor.store_schedule import StoreSchedule
from nvrx_core.inprocess.monitor.watch import Parts, Watch
from nvrx_core.inprocess.protocol import effects
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.hang_detector import HangDetector, ProgressSample
from nvrx_core.liveness.peer_progress import PeerProgress
from nvrx_core.progress.stage import Stage

from .running import Waits, fail, rules_of
from .slots import LookUp
from .world import AwaitKey, Until

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["MONITOR", "SimulatedPage", "taking_over", "watch_of"]

TURN: Final = 1e-9
"""Seconds that a turn of a monitor process takes: awake time is rounded, and a deadline may be there a moment later."""
STARTS_WITHIN: Final = 5.0
"""Beats of the lease within which a monitor process has reached the store."""
HARD: Final = 2.0
"""Seconds: longer than any function takes that swallows interruptions."""


class SimulatedPage:
    """The progress page of a simulated rank."""

    inside = False
    look_within = math.inf
    rendezvous = collectives = 0
    exited = None

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._living, self._siblings = list[int](), list[int]()

    @property
    def stage(self) -> Stage:
        return self.rank.about

    @property
    def store_lost_at(self) -> float:
        return self.rank.store_lost_at

    @property
    def hosts_store(self) -> bool:
        return self.rank.call.is_hosted_by(self.rank.member)

    @property
    def iteration(self) -> int:
        return self.rank.iteration

    def members(self) -> frozenset[int]:
        return frozenset(self.rank.call.living(self.rank.lost))

    def siblings(self) -> list[int]:
        living = self.rank.call.living(self.rank.lost)
        if living is not self._living:
            others = living[:1] if len(living) >= 100 else [each for each in living if each != self.rank.member]
            self._living, self._siblings = living, others
        return self._siblings


def watch_of(rank: Rank, *, replaces: bool) -> Watch:
    """The watch of a rank: silence counts only in schedules in which something may fall silent."""
    options, beat = rank.call.options, rank.call.options.beat
    looks = bool(options.nodes or options.suspicions or options.pauses)
    judges = Judges(HangDetector(beat, HARD, 1.0), GilStallPolicy(math.inf, math.inf), CleanExitPolicy())
    schedule = StoreSchedule(heartbeat=beat if looks else math.inf, probe=math.inf, siblings=beat)
    interval = math.inf
    rank.awake = AwakeClock()
    ring = SiblingRing(rank.member, 3.3 * beat, STARTS_WITHIN * beat)
    parts = Parts(judges, schedule, ring, rank.awake, interval, replaces)
    return Watch(rank.member, SimulatedPage(rank), parts, rank.now)


def taking_over(rank: Rank, watch: Watch) -> effects.Flow[None]:
    """Run a watch that replaces another, as `MonitorProcess._take_over` does.

    The time since its predecessor has last run is charged to nobody: the whole node may have been paused meanwhile.
    """
    rank.awake.woke(rank.beat_at, now=rank.now())
    yield from watch.run()


def _sleep(rank: Rank, effect: watch_effects.Sleep) -> Waits:
    world = rank.world
    if effect.until > world.now and not (rank.is_dead() or rank.woken):
        yield Until(lambda: rank.is_dead() or rank.woken, effect.until)
    else:
        world.late += 1
        assert world.late < 10_000, f"the monitor process of {rank.member} never sleeps, and that is over"
        yield TURN
    while world.now < rank.paused_until:
        yield Until(lambda: world.now >= rank.paused_until, rank.paused_until)
    rank.woken = False
    return rank.is_dead()


def _take_sample(rank: Rank, effect: watch_effects.TakeSample) -> ProgressSample:
    rank.beat_at, hung_at = rank.world.now, rank.function.hung_at
    alive_at = rank.awake.at(rank.world.now if hung_at is None else hung_at)
    return ProgressSample(
        iteration=rank.iteration, stage=rank.about, alive_at=alive_at if rank.call.hangs else math.inf,
        noticed=rank.noticed == rank.iteration, interrupting=rank.aborting == rank.iteration,
    )  # fmt: skip


def _move_lease(rank: Rank, _: watch_effects.MoveLease) -> None:
    leases = rank.call.leases
    leases[rank.member] = str(int(leases.get(rank.member, "0")) + 1)


def _read_leases(rank: Rank, effect: watch_effects.ReadLeases) -> dict[int, str]:
    leases = rank.call.leases
    return {member: leases[member] for member in effect.members if member in leases}


def _silence(rank: Rank, effect: watch_effects.DescribeSilence) -> FaultRecord:
    """A living member was paused for long enough."""
    rank.world.note(f"{rank.member}'s monitor", f"misses {effect.member}", rank.iteration)
    rank.call.ranks[effect.member].resume_monitor()
    return FaultRecord(
        initial_rank=effect.member, rank=-1, interruption=Interruption.UNRESPONSIVE.name, occurred=rank.world.now
    )


def _stall(rank: Rank, _: watch_effects.DescribeStall) -> FaultRecord:
    return rank.fault(Interruption.SOFT_TIMEOUT)


def _death(rank: Rank, effect: watch_effects.DescribeDeath) -> FaultRecord:
    return rank.fault(Interruption.TERMINATED if effect.reason is None else Interruption.HARD_TIMEOUT)


def _terminate(rank: Rank, _: watch_effects.TerminateRank) -> None:
    """End the rank, unless it has died: a process that has just taken over judges it once before it learns of that."""
    if rank.is_dead():
        return
    assert rank.function.wedged, f"I12: {rank.member} is ended, and is not hung"
    rank.die(node=False)


def _kill(rank: Rank, _: watch_effects.KillRank) -> None:
    raise AssertionError(f"I12: {rank.member} is killed, and was not told to end")


def _interrupt(rank: Rank, _: watch_effects.InterruptRank) -> None:
    rank.function.signal()


def _mark_left(rank: Rank, effect: effects.MarkLeft) -> float:
    rank.call.membership.mark_left(effect.member, silent=effect.silent)
    return rank.world.delay()


def _learn_decision(_: Rank, effect: effects.AwaitDecision) -> AwaitKey:
    return AwaitKey(effect.iteration, "decision")


def _read_decision(_: Rank, effect: effects.ReadDecision) -> effects.StoreOperation:
    return effects.StoreOperation(LookUp(), effect.iteration)


def _set_rendezvous(rank: Rank, effect: effects.SetRendezvous) -> effects.StoreOperation:
    return rank.set_rendezvous(effect)


def _has_left(rank: Rank, effect: watch_effects.HasLeft) -> bool:
    return rank.call.membership.has_left(effect.member)


def _join_for_dead(rank: Rank, _: watch_effects.JoinForDead) -> bool:
    return rank.entry is None or rank.entry.complete_for_dead()


def _delete_if_over(rank: Rank, _: effects.DeleteIfOver) -> None:
    rank.call.deletion.delete_if_over(rank.call.size)


MONITOR: Final = rules_of(
    ignored={watch_effects.DisownPage, watch_effects.MarkStalled, watch_effects.ReportPause},
    at_once={
        effects.DeleteIfOver: _delete_if_over,
        effects.ReportInternalError: fail,
        watch_effects.DescribeDeath: _death,
        watch_effects.DescribeSilence: _silence,
        watch_effects.DescribeStall: _stall,
        watch_effects.FindProgress: lambda rank, effect: PeerProgress({}),
        watch_effects.HasLeft: _has_left,
        watch_effects.InterruptRank: _interrupt,
        watch_effects.KillRank: _kill,
        watch_effects.JoinForDead: _join_for_dead,
        watch_effects.MoveLease: _move_lease,
        watch_effects.ReadLeases: _read_leases,
        watch_effects.TakeSample: _take_sample,
        watch_effects.TerminateRank: _terminate,
    },
    wishes={
        effects.AwaitDecision: _learn_decision,
        effects.MarkLeft: _mark_left,
        effects.ReadDecision: _read_decision,
        effects.SetRendezvous: _set_rendezvous,
    },
    waits={watch_effects.Sleep: _sleep},
)
