"""One member of a small job: the production flows of its threads and its monitor process, one input at a time.

An effect of a flow is either local, and done at once, or pending until the checker lets it happen. `fingerprint`
identifies a member's state: the position and local variables of each flow, and what the flows share. Generators cannot
be copied, so a member is recreated by replaying its inputs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final

from nvrx_core.errors import BarrierTimeout, RankAssignmentError, RankDiscarded, RestartAbort, StoreLost
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.interruption import driving
from nvrx_core.inprocess.interruption.policy import InterruptPolicy, Seen
from nvrx_core.inprocess.monitor import watch_effects
from nvrx_core.inprocess.monitor.clean_exit import CleanExitPolicy
from nvrx_core.inprocess.monitor.gil_stall import GilStallPolicy
from nvrx_core.inprocess.monitor.judging import Judges
from nvrx_core.inprocess.monitor.sibling_ring import SiblingRing
from nvrx_core.inprocess.monitor.store_schedule import StoreSchedule, StoreTask
from nvrx_core.inprocess.monitor.watch import Parts, Watch
from nvrx_core.inprocess.protocol import effects, monitor_effects
from nvrx_core.inprocess.protocol.death_report import DeathReport
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, Decision
from nvrx_core.inprocess.protocol.main_thread import CallRules, MainThread
from nvrx_core.inprocess.protocol.monitor_thread import monitor_thread
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.inprocess.protocol.round import Round
from nvrx_core.inprocess.protocol.view import Rounds, RoundView
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.hang_detector import HangAction, ProgressSample, SoftTimeout
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.base import RankAssignmentCtx, State
from nvrx_core.rank_assignment.composition import assign, leader
from nvrx_core.rank_assignment.moves import ShiftRanks

from .job import Config, fault_of
from .liveness import live_names
from .record import TIMEOUTS

__all__ = ["MAIN", "MONITOR", "THREAD", "Member"]

MAIN, THREAD, MONITOR = "main", "thread", "monitor"
PENDING: Final = frozenset({
    effects.Await, effects.AwaitDecision, effects.AwaitEvent, effects.AwaitGuests, effects.AwaitHostClosed,
    monitor_effects.AwaitOut, effects.AwaitRendezvous, effects.BeginIteration, effects.CountOut, effects.DeleteIfOver,
    effects.HostRendezvous,
    monitor_effects.InterruptFunction, effects.LoseMembers, effects.MarkLeft, effects.ReadDecision, effects.RunFunction,
    effects.SetRendezvous, effects.StoreOperation, watch_effects.Sleep,
})  # fmt: skip
"""What the checker lets happen; all else is local."""
NO_STORE: Any = None  # the built-in assignments ask nothing of it
_SHARED: Final = frozenset(("self", "rounds", "now", "state", "parts", "page", "ring", "detector", "policy"))


class Failed(Exception):
    """What a function raises when it fails."""


class Unfit(Exception):
    """What a plug-in raises."""


class Leaves(BaseException):
    """What it raises to leave."""


class Chosen:
    """The verdicts of a monitor process's machines, chosen by the checker, each once."""

    def __init__(self, member: int) -> None:
        self.stalls, self.silent = False, tuple[int, ...]()
        self.deadline, self.no_progress_since = math.inf, None
        self.schedule, self.ring = _Schedule(self), _Ring(self, member)

    def evaluate(self, sample: ProgressSample, *, now: float) -> tuple[HangAction, ...]:
        """Judge as is chosen."""
        stalls, self.stalls = self.stalls, False
        return (SoftTimeout("chosen"),) if stalls else ()


class _Schedule(StoreSchedule):
    """Has the siblings watched when one is to be silent."""

    def __init__(self, chosen: Chosen) -> None:
        super().__init__(heartbeat=math.inf, probe=math.inf, siblings=math.inf)
        self.chosen, self.deadline = chosen, math.inf

    def due(self, *, now: float) -> tuple[StoreTask, ...]:
        return (StoreTask.WATCH_SIBLINGS,) if self.chosen.silent else ()


class _Ring(SiblingRing):
    """Finds those silent that are chosen."""

    def __init__(self, chosen: Chosen, member: int) -> None:
        super().__init__(member, math.inf)
        self.chosen = chosen

    def observe(
        self, watched: list[int], leases: Mapping[int, str], *, all_have_arrived: bool, now: float
    ) -> tuple[int, ...]:
        silent, self.chosen.silent = self.chosen.silent, ()
        return silent


class _Page:
    """The progress page of a member."""

    inside, look_within, meetings, collectives, exited = False, math.inf, 0, 0, None

    def __init__(self, member: Member) -> None:
        self.member = member

    @property
    def stage(self) -> Stage:
        return self.member.stage

    @property
    def iteration(self) -> int:
        return self.member.iteration

    @property
    def store_lost_at(self) -> float:
        return float(self.member.lost_store)

    @property
    def hosts_store(self) -> bool:
        return self.member.config.hosted and self.member.member == 0

    def members(self) -> frozenset[int]:
        return self.member.known

    def siblings(self) -> list[int]:
        return sorted(self.member.known - {self.member.member})


class Member:
    """A member.

    Args:
        config: the job.
        member: which one it is.
    """

    def __init__(self, config: Config, member: int) -> None:
        self.config, self.member, self.time = config, member, 0.0
        self.known = frozenset(range(config.ranks))
        self.rounds = Rounds(member, self.known, TIMEOUTS)
        self.state = State(member, config.ranks)
        self.iteration, self.section = -1, 0
        self.requested = self.left = False
        self.end = ""
        self.spoken: dict[int, int] = {}
        self.about, self.lost_store, self.abandoned = -1, False, False
        self.stage, self.chosen = Stage.STARTING, Chosen(member)
        self.decision: Decision | None = None
        rules = CallRules(
            leader=self._leader, no_progress_limit=config.limit or None, hosts_store=config.hosted and member == 0,
            store_is_hosted=config.hosted,
        )  # fmt: skip
        self.flow = MainThread(self.rounds, self.state, rules, self._now)
        self.flows: dict[str, Generator[Any, Any, Any] | None] = {
            MAIN: self.flow.run(), THREAD: monitor_thread(self.rounds, self._now), MONITOR: None,
        }  # fmt: skip
        self.watch = self._watch()
        self.pending: dict[str, Any] = dict.fromkeys((MAIN, THREAD, MONITOR))
        self._resume(MAIN, None)
        self._resume(THREAD, None)
        self._begin_watch()
        self._settle()

    def _now(self) -> float:
        return self.time

    def _leader(self, world_size: int, terminated: tuple[int, ...]) -> int | None:
        return None if self.config.discards else leader(ShiftRanks(), world_size, terminated)

    # Inputs

    def apply(self, what: str, given: Any) -> None:
        """Let something happen: the pending effect of a flow has this outcome, or what the name of the input says."""
        round_ = self.rounds.view.round
        if what in self.flows:
            self._resume(what, given)
        else:
            getattr(self, f"_{what}")(given)
        self._settle()
        round_.check()

    def _fails(self, _: None) -> None:
        self._resume(MAIN, IterationResult(Outcome.FAILED, error=Failed()))

    def _leaves(self, _: None) -> None:
        self._resume(MAIN, IterationResult(Outcome.LEFT, error=Leaves()))

    def _exits(self, _: None) -> None:
        self._resume(MAIN, IterationResult(Outcome.EXITED, error=SystemExit(0)))

    def _completes(self, _: None) -> None:
        self._resume(MAIN, IterationResult(Outcome.RETURNED))

    def _enters_section(self, _: None) -> None:
        self.section = 1

    def _leaves_section(self, _: None) -> None:
        self.section = 2

    def _waits_no_longer(self, _: None) -> None:
        """The deadline of the main thread's wait has passed."""
        self.time = math.inf
        self._resume(MAIN, None)
        self.time = 0.0

    def _loses_store(self, which: str) -> None:
        self._resume(which, effects.StoreFailure("gone"), throw=True)
        self.lost_store = which == THREAD

    def _breaks(self, _: None) -> None:
        self._resume(MAIN, KeyboardInterrupt(), throw=True)

    def _dies(self, node: bool) -> None:
        self._stop(THREAD)
        self._stop(MAIN)
        self.end = "dead"
        self.rounds, self.section, self.requested = Rounds(self.member, frozenset(), TIMEOUTS), 0, False
        if node:
            self._stop(MONITOR)
            self.end = "gone"

    def _replaces_monitor(self, _: None) -> None:
        self._stop(MONITOR)
        self.spoken, self.about = {}, -1
        self.end = self.end.removesuffix(", and told")
        self._begin_watch()

    def _ends_monitor(self, _: None) -> None:
        self._stop(MONITOR)

    def _hangs(self, _: None) -> None:
        self.chosen.stalls = True
        self._wake()

    def _speaks_for(self, other: int) -> None:
        self.spoken, self.about = {**self.spoken, other: self.iteration}, other
        self.chosen.silent = (other,)
        self._wake()

    def _marked_left(self, _: None) -> None:
        """The monitor process of another member has released this one."""
        self.left = True

    # The flows

    def _watch(self) -> Watch:
        chosen = self.chosen
        judges = Judges(chosen, GilStallPolicy(math.inf, math.inf), CleanExitPolicy())  # type: ignore[arg-type]
        parts = Parts(judges, chosen.schedule, chosen.ring, AwakeClock(), math.inf)
        return Watch(self.member, _Page(self), parts, self._now)

    def _begin_watch(self) -> None:
        self.watch = self._watch()
        self._start_monitor(self.watch.run())

    def _wake(self) -> None:
        """The monitor process looks."""
        self._resume(MONITOR, False)

    def _start_monitor(self, flow: Generator[Any, Any, Any]) -> None:
        self.flows[MONITOR] = flow
        self._resume(MONITOR, None)

    def _stop(self, which: str) -> None:
        flow, self.flows[which], self.pending[which] = self.flows[which], None, None
        if flow is not None:
            flow.close()

    def _resume(self, which: str, outcome: Any, *, throw: bool = False) -> None:
        """Run a flow to its next pending effect."""
        flow = self.flows[which]
        assert flow is not None
        self._note(which, self.pending[which], outcome)
        try:
            effect = flow.throw(outcome) if throw else flow.send(outcome)
            while type(effect) not in PENDING:
                effect = flow.send(getattr(self, f"_do_{type(effect).__name__}", _nothing)(effect))
        except StopIteration as end:
            self._ended(which, end.value)
        except StoreLost:
            self._ended(which, None)
            self.end = "lost the store"
        except KeyboardInterrupt:
            self._ended(which, None)
            if self.abandoned:
                self._dies(node=False)
        except (effects.StoreFailure, BarrierTimeout):
            assert which != MONITOR, f"the monitor process of member {self.member} fails"
            self._ended(which, None)
        else:
            self.pending[which] = effect

    def _note(self, which: str, done: effects.Effect | None, outcome: Any) -> None:
        """What a pending effect changes here when it happens."""
        if isinstance(done, effects.AwaitDecision) and which == THREAD:
            again = Round.from_state(self.rounds.view.round.state(), TIMEOUTS)
            stale = self.decision is not None and again.decided(self.decision, now=0.0)
            assert not stale, f"I8: {self.member} acts in {done.iteration} on the decision of the round before"
            self.decision = outcome
        if isinstance(done, effects.LoseMembers):
            self.known -= set(done.members)
        elif isinstance(done, effects.BeginIteration):
            self.iteration = self.state.iteration
        elif isinstance(done, effects.MarkLeft) and done.member == self.member:
            self.left = True
        elif isinstance(done, effects.ReadDecision) and which == MONITOR:
            self.spoken = {**self.spoken, self.about: done.iteration}

    def _ended(self, which: str, value: Any) -> None:
        self.flows[which] = self.pending[which] = None
        if which == MONITOR:
            self.about = -1
        if which == MAIN:
            self._stop(THREAD)
            spent = value is not None and isinstance(value.error, RestartAbort | Failed)
            self.end = "finished" if self.rounds.view.finished else "spent" if spent else "left"
            self.stage = Stage.LEFT if self.stage is not Stage.EXITED_ABNORMALLY else self.stage

    def _settle(self) -> None:
        """Go on as far as nothing but this member's own threads is waited for."""
        while self._settle_once():
            pass
        asleep = isinstance(self.pending[MONITOR], watch_effects.Sleep)
        if asleep and self.end == "dead":
            self.end = "dead, and told"
            self._resume(MONITOR, self.stage is not Stage.EXITED_ABNORMALLY)
        elif asleep and self.stage is Stage.LEFT:
            self._resume(MONITOR, False)

    def _settle_once(self) -> bool:
        awaited, waits = self.pending[MAIN], self.pending[THREAD]
        if isinstance(awaited, effects.Await) and awaited.until(awaited.view):
            self._resume(MAIN, None)
        elif isinstance(awaited, effects.Await | effects.RunFunction) and self.lost_store:
            self._resume(MAIN, StoreLost("node0", 1), throw=True)
        elif isinstance(awaited, effects.RunFunction) and self.requested and self.section != 1:
            self._resume(MAIN, IterationResult(Outcome.INTERRUPTED))
        elif isinstance(waits, monitor_effects.InterruptFunction) and self._interrupts():
            self.requested = True
            self._resume(THREAD, None)
        elif isinstance(waits, monitor_effects.AwaitOut) and not isinstance(awaited, effects.RunFunction):
            self._resume(THREAD, None)
        else:
            return False
        return True

    def _interrupts(self) -> bool:
        """Whether the flow that interrupts does so, as the function is now."""
        masked = isinstance(self.pending[MAIN], effects.RunFunction) and self.section == 1
        seen = Seen(out=False, masked=masked, raised=0, alive=False)
        answers: dict[type[effects.Effect], object] = {driving.Observe: seen, driving.AwaitLeft: True}
        fires, flow = False, driving.begin(InterruptPolicy(unwind=10.0), self._now)
        effect = next(flow, None)
        while effect is not None:
            fires |= isinstance(effect, driving.FireInterrupt)
            try:
                effect = flow.send(answers.get(type(effect)))
            except StopIteration:
                break
        assert not (fires and masked), f"I4: member {self.member} is interrupted in an atomic section"
        return fires

    # Local effects

    def _do_Assign(self, effect: effects.Assign) -> BaseException | None:  # noqa: N802 (named by the effect)
        k, terminated, state = effect.decision.iteration, set(effect.decision.terminated), self.state
        if (k + 1, self.member) in self.config.errors:
            return RankAssignmentError("planted", rank=state.rank, world_size=state.world_size)
        if (k + 1, self.member) in self.config.discards:
            return RankDiscarded("planted", rank=state.rank)
        assign(ShiftRanks(), RankAssignmentCtx(state, NO_STORE, terminated))
        gone = [member for i, member in self.config.discards if i == k + 1 and member in self.known]
        state.rank -= sum(member < self.member for member in gone)
        state.world_size -= len(gone)
        state.active_rank = state.rank
        if k >= 0:
            state.advance()
        return None

    def _do_DescribeArrival(self, effect: effects.DescribeArrival) -> Arrival:  # noqa: N802
        place = f"node{self.member}:1" if effect.status is ArrivalStatus.ALIVE and not self.config.asks else ""
        return Arrival(
            initial_rank=self.member, rank=self.state.rank, status=effect.status, world_size=self.state.world_size,
            fault=effect.fault, place=place,
        )  # fmt: skip

    def _do_MakeFault(self, effect: effects.MakeFault) -> FaultRecord:  # noqa: N802
        return fault_of(self.member, self.state.rank, Interruption.EXCEPTION)

    _do_LateFault = _do_MakeFault  # noqa: N815

    def _fails_in(self, plug_in: str, iteration: int) -> BaseException | None:
        return Unfit() if (plug_in, iteration, self.member) in self.config.fails else None

    def _do_DeclareKeys(self, effect: effects.DeclareKeys) -> BaseException | None:  # noqa: N802
        return self._fails_in("keys", effect.iteration)

    def _do_Initialize(self, effect: effects.Initialize) -> IterationResult | None:  # noqa: N802
        error = self._fails_in("initialize", self.state.iteration)
        return IterationResult(Outcome.FAILED, error=error) if error is not None else None

    def _do_Recover(self, effect: effects.Recover) -> BaseException | None:  # noqa: N802
        return self._fails_in("recover", self.state.iteration)

    def _do_Abandon(self, effect: effects.Abandon) -> None:  # noqa: N802
        self.abandoned, self.stage = True, Stage.EXITED_ABNORMALLY

    def _do_FindHolders(self, effect: effects.FindHolders) -> dict[int, int]:  # noqa: N802
        return {}

    def _do_ResetInterrupt(self, effect: monitor_effects.ResetInterrupt) -> None:  # noqa: N802
        self.requested, self.section = False, 0

    def _do_ReportInternalError(self, effect: effects.ReportInternalError) -> None:  # noqa: N802
        raise AssertionError(f"internal error: {effect.reason}")

    def _do_EnterStage(self, effect: effects.EnterStage) -> None:  # noqa: N802
        self.stage = effect.stage

    def _do_TakeSample(self, effect: watch_effects.TakeSample) -> ProgressSample:  # noqa: N802
        return ProgressSample(iteration=self.iteration, stage=self.stage, alive_at=math.inf)

    def _do_ReadLeases(self, effect: watch_effects.ReadLeases) -> dict[int, str]:  # noqa: N802
        return {}

    def _do_HasLeft(self, effect: watch_effects.HasLeft) -> bool:  # noqa: N802
        return False

    def _do_JoinForDead(self, effect: watch_effects.JoinForDead) -> bool:  # noqa: N802
        return True

    def _do_DescribeStall(self, effect: watch_effects.DescribeStall) -> FaultRecord:  # noqa: N802
        return fault_of(self.member, self.state.rank, Interruption.SOFT_TIMEOUT)

    def _do_DescribeDeath(self, effect: watch_effects.DescribeDeath) -> FaultRecord:  # noqa: N802
        return fault_of(self.member, self.state.rank, Interruption.TERMINATED)

    def _do_DescribeSilence(self, effect: watch_effects.DescribeSilence) -> FaultRecord:  # noqa: N802
        return fault_of(effect.member, -1, Interruption.UNRESPONSIVE)

    def _do_MarkStoreLost(self, effect: watch_effects.MarkStoreLost) -> None:  # noqa: N802
        self.lost_store = True

    def _do_LoseStore(self, effect: effects.LoseStore) -> StoreLost:  # noqa: N802
        return StoreLost("node0", 1)

    # The identity of a state

    def fingerprint(self) -> tuple[object, ...]:
        """Everything that determines this member's next steps, hashable."""
        state, flow = self.state, self.flow
        whole = (state.rank, state.world_size, state.iteration, self.iteration, self.known, self.section)
        alive = (
            self.requested, flow.endpoint, _canonical(flow.failure), flow.completed, flow.left_early,
            flow.limit.state(), _canonical(self.rounds.view),
        )  # fmt: skip
        return (
            self.end, self.left, self.lost_store, whole, alive if self.flows[MAIN] is not None else None,
            tuple(sorted(self.spoken.items())), self.about, frozenset(self.watch.unresponsive),
            self.stage is Stage.LEFT,
            *map(_stand, self.flows.values()), *map(_canonical, self.pending.values()),
        )  # fmt: skip


def _nothing(effect: effects.Effect) -> None:
    """Of no consequence to others."""


def _stand(flow: Generator[Any, Any, Any] | None) -> tuple[object, ...]:
    """The position of a flow: its frames, from the outermost, each with its instruction and its local variables."""
    frames: list[object] = []
    while flow is not None and flow.gi_frame is not None:
        at, values = flow.gi_frame.f_lasti, flow.gi_frame.f_locals
        names = sorted(live_names(flow.gi_code, at) - _SHARED)
        frames += (flow.gi_code.co_name, at, *(_canonical(values.get(name)) for name in names))
        flow = flow.gi_yieldfrom if isinstance(flow.gi_yieldfrom, Generator) else None
    return tuple(frames)


def _canonical(value: Any) -> object:
    """The same for values that mean the same."""
    kind = next((kind for kind in _MEANING if isinstance(value, kind)), None)
    if kind is not None:
        return _MEANING[kind](value)
    return value.__qualname__ if callable(value) and not isinstance(value, type) else value


def _all(values: Iterable[Any]) -> tuple[object, ...]:
    return tuple(map(_canonical, values))


def _view(view: RoundView) -> object:
    round_ = view.round
    return round_.state(), round_.deadline < math.inf, view.finished, view.aborted, view.decision


_MEANING: Final[dict[type, Callable[[Any], object]]] = {
    RoundView: _view,
    Round: Round.state,
    DeathReport: lambda report: tuple(vars(report).values()),
    IterationResult: lambda ended: (ended.how, type(ended.error)),
    BaseException: type,
    effects.Effect: lambda effect: (type(effect), *_all(getattr(effect, name) for name in effect.__slots__)),
    tuple: _all,
    list: _all,
    deque: _all,
    dict: lambda values: tuple(values.items()),
}
