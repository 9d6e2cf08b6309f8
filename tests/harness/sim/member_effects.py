"""The effects of a member's flows that take no other member, and are done at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.errors import RankAssignmentError, RankDiscarded, RestartAbort, StoreLost
from nvrx_core.fault.exceptions import exit_code
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.monitor import watch_effects
from nvrx_core.inprocess.protocol import effects, monitor_effects
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.liveness.hang_detector import ProgressSample
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.base import RankAssignmentCtx
from nvrx_core.rank_assignment.composition import assign
from nvrx_core.rank_assignment.moves import ShiftRanks

from .job import fault_of

if TYPE_CHECKING:
    from .member import Member

__all__ = ["LOCAL"]

NO_STORE: Any = None  # the built-in assignments ask nothing of it


class Unfit(Exception):
    """What a plug-in raises."""


def _assign(member: Member, effect: effects.Assign) -> BaseException | None:
    k, terminated, state = effect.decision.iteration, set(effect.decision.terminated), member.state
    if (k + 1, member.member) in member.config.errors:
        return RankAssignmentError("injected", rank=state.rank, world_size=state.world_size)
    if (k + 1, member.member) in member.config.discards:
        return RankDiscarded("injected", rank=state.rank)
    if member.config.whole and effect.decision.lost:
        member.given_code = effect.decision.exit.exit_code if effect.decision.exit is not None else 0
        return RestartAbort("injected")
    assign(ShiftRanks(), RankAssignmentCtx(state, NO_STORE, terminated))
    gone = [number for i, number in member.config.discards if i == k + 1 and number in member.known]
    state.rank -= sum(number < member.member for number in gone)
    state.world_size -= len(gone)
    state.active_rank = state.rank
    if k >= 0:
        state.advance()
    return None


def _describe_arrival(member: Member, effect: effects.DescribeArrival) -> Arrival:
    endpoint = f"node{member.member}:1" if effect.status is ArrivalStatus.ALIVE and not member.config.asks else ""
    return Arrival(
        initial_rank=member.member, rank=member.state.rank, status=effect.status, world_size=member.state.world_size,
        fault=effect.fault, endpoint=endpoint,
    )  # fmt: skip


def _make_fault(member: Member, effect: effects.MakeFault) -> FaultRecord:
    kind = Interruption.EXCEPTION if isinstance(effect.error, Exception) else Interruption.BASE_EXCEPTION
    return fault_of(member.member, member.state.rank, kind, exit_code(effect.error))


def _late_fault(member: Member, effect: effects.LateFault) -> FaultRecord:
    return fault_of(member.member, member.state.rank, Interruption.EXCEPTION)


def _fails_in(member: Member, plug_in: str, iteration: int) -> BaseException | None:
    return Unfit() if (plug_in, iteration, member.member) in member.config.fails else None


def _declare_keys(member: Member, effect: effects.DeclareKeys) -> BaseException | None:
    return _fails_in(member, "keys", effect.iteration)


def _initialize(member: Member, effect: effects.Initialize) -> IterationResult | None:
    error = _fails_in(member, "initialize", member.state.iteration)
    return IterationResult(Outcome.FAILED, error=error) if error is not None else None


def _recover(member: Member, effect: effects.Recover) -> BaseException | None:
    return _fails_in(member, "recover", member.state.iteration)


def _abandon(member: Member, effect: effects.Abandon) -> None:
    member.abandoned, member.stage = True, Stage.EXITED_ABNORMALLY


def _find_holders(member: Member, effect: effects.FindHolders) -> dict[int, int]:
    return {}


def _reset_interrupt(member: Member, effect: monitor_effects.ResetInterrupt) -> None:
    member.requested, member.section = False, 0


def _report_internal_error(member: Member, effect: effects.ReportInternalError) -> None:
    raise AssertionError(f"internal error: {effect.reason}")


def _enter_stage(member: Member, effect: effects.EnterStage) -> None:
    member.stage = effect.stage


def _take_sample(member: Member, effect: watch_effects.TakeSample) -> ProgressSample:
    return ProgressSample(iteration=member.iteration, stage=member.stage, alive_at=math.inf)


def _read_leases(member: Member, effect: watch_effects.ReadLeases) -> dict[int, str]:
    return {}


def _has_left(member: Member, effect: watch_effects.HasLeft) -> bool:
    return effect.member == member.member and member.left


def _join_for_dead(member: Member, effect: watch_effects.JoinForDead) -> bool:
    return True


def _describe_stall(member: Member, effect: watch_effects.DescribeStall) -> FaultRecord:
    return fault_of(member.member, member.state.rank, Interruption.SOFT_TIMEOUT)


def _describe_death(member: Member, effect: watch_effects.DescribeDeath) -> FaultRecord:
    return fault_of(member.member, member.state.rank, Interruption.TERMINATED)


def _describe_silence(member: Member, effect: watch_effects.DescribeSilence) -> FaultRecord:
    return fault_of(effect.member, -1, Interruption.UNRESPONSIVE)


def _mark_store_lost(member: Member, effect: watch_effects.MarkStoreLost) -> None:
    member.lost_store = True


def _lose_store(member: Member, effect: effects.LoseStore) -> StoreLost:
    return StoreLost("node0", 1)


LOCAL: Final[Mapping[type[effects.Effect], Callable[[Member, Any], Any]]] = {
    effects.Assign: _assign,
    effects.DescribeArrival: _describe_arrival,
    effects.MakeFault: _make_fault,
    effects.DeclareKeys: _declare_keys,
    effects.Initialize: _initialize,
    effects.Recover: _recover,
    effects.Abandon: _abandon,
    effects.FindHolders: _find_holders,
    monitor_effects.ResetInterrupt: _reset_interrupt,
    effects.ReportInternalError: _report_internal_error,
    effects.EnterStage: _enter_stage,
    watch_effects.TakeSample: _take_sample,
    watch_effects.ReadLeases: _read_leases,
    watch_effects.HasLeft: _has_left,
    watch_effects.JoinForDead: _join_for_dead,
    watch_effects.DescribeStall: _describe_stall,
    watch_effects.DescribeDeath: _describe_death,
    watch_effects.DescribeSilence: _describe_silence,
    watch_effects.MarkStoreLost: _mark_store_lost,
    effects.LoseStore: _lose_store,
    effects.LateFault: _late_fault,
}
