"""The effects of a simulated rank's main thread, from the first barrier of a call to its farewell."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from nvrx_core.errors import RestartError
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.protocol import effects
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.progress.stage import Stage as About
from nvrx_core.rank_assignment.base import Mode, RankAssignmentCtx
from nvrx_core.rank_assignment.composition import assign

from .running import Waits, fail, rules_of
from .world import AwaitKey, Until

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["MAIN", "end_function"]

NOWHERE: Final = None
SOMEWHERE: Final = ("node", 1)


def _await(_: Rank, effect: effects.Await) -> Until:
    return Until(functools.partial(effect.until, effect.view), effect.deadline)


def _lose(rank: Rank, effect: effects.LoseMembers) -> None:
    rank.lost |= set(effect.members)


def _enter_stage(rank: Rank, effect: effects.EnterStage) -> None:
    rank.enter(effect.stage)


def _begin(rank: Rank, _: effects.BeginIteration) -> None:
    rank.iteration = rank.state.iteration


def _assign(rank: Rank, effect: effects.Assign) -> BaseException | None:
    iteration, terminated = effect.decision.iteration, set(effect.decision.terminated)
    try:
        assignment = rank.call.assignment(iteration + 1, rank.member)
        assign(assignment, RankAssignmentCtx(rank.state, rank.call.store, terminated))
    except RestartError as error:
        return error
    if iteration >= 0:
        rank.state.advance()
    return None


def _host(rank: Rank, _: effects.HostRendezvous) -> Waits:
    """Host the next process group's rendezvous."""
    yield rank.world.delay()
    rank.call.slots[rank.state.iteration].hosted = True
    rank.call.poke()
    return "node:1"


def _await_rendezvous(_: Rank, effect: effects.AwaitRendezvous) -> Waits:
    somewhere = yield AwaitKey(effect.iteration, "master")
    return SOMEWHERE if somewhere else NOWHERE


def _holders(rank: Rank, _: effects.FindHolders) -> Mapping[int, int]:
    """Who is in an atomic section; their leases move."""
    others = rank.call.ranks.values()
    holding = (other for other in others if other.function.depth and other.iteration == rank.iteration)
    return {other.member: rank.world.events for other in holding}


def _give_up(rank: Rank, _: effects.ReadDecision) -> None:
    raise AssertionError(f"deadlock: {rank.member} gives up")


def _declare(rank: Rank, _: effects.DeclareKeys) -> BaseException | None:
    return rank.call.fails("keys", rank)


def _recover(rank: Rank, _: effects.Recover) -> Waits:
    yield rank.world.delay()
    return rank.call.fails("recovery", rank)


def _initialize(rank: Rank, _: effects.Initialize) -> Waits:
    rank.call.enters(rank)
    rank.go(rank.iteration)
    yield rank.world.delay()
    error = rank.call.fails("initialize", rank)
    if error is not None:
        return end_function(rank, IterationResult(Outcome.FAILED, error=error))
    return None if rank.state.mode is Mode.ACTIVE else end_function(rank, IterationResult(Outcome.RESERVE))


def _run(rank: Rank, _: effects.RunFunction) -> Waits:
    rank.enter(About.RUNNING)
    return end_function(rank, (yield from rank.function.begin()))


def end_function(rank: Rank, ended: IterationResult) -> IterationResult:
    """The rank is out of the function."""
    rank.leaving = ended.how in (Outcome.LEFT, Outcome.EXITED)
    rank.function.end()
    rank.about = About.UNWINDING
    rank.go(None)
    rank.thread.poke()
    return ended


def _describe(rank: Rank, effect: effects.DescribeArrival) -> Arrival:
    told = effect.status is ArrivalStatus.ALIVE and not rank.call.options.asks
    return Arrival(
        initial_rank=rank.member, rank=rank.state.rank, status=effect.status, world_size=rank.state.world_size,
        fault=effect.fault, completed=effect.completed, endpoint=f"node{rank.member}:1" if told else "",
    )  # fmt: skip


def _make_fault(rank: Rank, effect: effects.MakeFault) -> FaultRecord:
    failed = isinstance(effect.error, Exception)
    return rank.fault(Interruption.EXCEPTION if failed else Interruption.BASE_EXCEPTION)


def _late_fault(rank: Rank, _: effects.LateFault) -> FaultRecord:
    return rank.fault(Interruption.EXCEPTION)


def _complete(rank: Rank, _: effects.Complete) -> None:
    rank.call.finished(rank)


def _mark_left(rank: Rank, effect: effects.MarkLeft) -> float:
    rank.call.membership.mark_left(effect.member)
    return rank.world.delay()


def _count_out(rank: Rank, effect: effects.CountOut) -> float:
    rank.call.deletion.count_out(effect.iteration, effect.living, rank.call.size)
    return rank.world.delay()


def _delete_if_over(rank: Rank, _: effects.DeleteIfOver) -> None:
    rank.call.deletion.delete_if_over(rank.call.size)


def _set_rendezvous(rank: Rank, effect: effects.SetRendezvous) -> effects.StoreOperation:
    return rank.set_rendezvous(effect)


MAIN: Final = rules_of(
    ignored={
        effects.AwaitClients, effects.AwaitHostClosed, effects.ClearFrames, effects.CollectGarbage,
        effects.CollectPostponed, effects.LogWaiting, effects.ReleaseFailure,
        effects.ReleaseGroups, effects.ReportAnnounced, effects.ReportLeft, effects.RoundEnded,
        effects.StopHousekeeping, effects.Terminate, effects.UseRendezvous,
    },
    at_once={
        effects.Assign: _assign,
        effects.BeginIteration: _begin,
        effects.Complete: _complete,
        effects.DeclareKeys: _declare,
        effects.DeleteIfOver: _delete_if_over,
        effects.DescribeArrival: _describe,
        effects.EnterStage: _enter_stage,
        effects.FindHolders: _holders,
        effects.LateFault: _late_fault,
        effects.LoseMembers: _lose,
        effects.MakeFault: _make_fault,
        effects.ReadDecision: _give_up,
        effects.ReportInternalError: fail,
    },
    wishes={
        effects.Await: _await,
        effects.CountOut: _count_out,
        effects.MarkLeft: _mark_left,
        effects.SetRendezvous: _set_rendezvous,
    },
    waits={
        effects.AwaitRendezvous: _await_rendezvous,
        effects.HostRendezvous: _host,
        effects.Initialize: _initialize,
        effects.Recover: _recover,
        effects.RunFunction: _run,
    },
)  # fmt: skip
