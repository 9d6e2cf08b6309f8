"""One simulated rank: the production flows of its main thread, monitor thread and monitor process, in virtual time.

For each effect a rule models what the shell of that flow does in production, at once or after a delay. The behaviour of
the user's function is random.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.errors import RestartError
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.interruption import driving
from nvrx_core.inprocess.interruption.policy import InterruptPolicy, Seen
from nvrx_core.inprocess.protocol import effects, monitor_effects
from nvrx_core.inprocess.protocol.actions import InternalError
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus
from nvrx_core.inprocess.protocol.main_thread import MainThread
from nvrx_core.inprocess.protocol.monitor_thread import monitor_thread
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.inprocess.protocol.transitions import Phase
from nvrx_core.inprocess.protocol.view import Rounds
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.progress.stage import Stage as About
from nvrx_core.rank_assignment.base import Mode, RankAssignmentCtx, State
from nvrx_core.rank_assignment.composition import assign

from .options import LONG
from .running import Running, Waits, rules_of
from .slots import SayWhere
from .watch import MONITOR, watch_of
from .world import AwaitKey, Task, Until

if TYPE_CHECKING:
    from .schedule import Schedule

__all__ = ["Rank", "Stage"]

NOWHERE: Final = None
SOMEWHERE: Final = ("node", 1)


class Failed(Exception):
    """What a function raises when it fails."""


class Leaves(BaseException):
    """What it raises to leave."""


class Stage(enum.Enum):
    """The state of a rank."""

    ALIVE = "alive"
    FINISHED = "finished"
    LEFT = "left"
    DEAD = "dead"


class Rank:
    """One rank.

    Args:
        schedule: the schedule that it belongs to.
        member: its initial rank.
        members: the initial ranks of all members.
    """

    def __init__(self, schedule: Schedule, member: int, members: frozenset[int]) -> None:
        self.schedule, self.world, self.member = schedule, schedule.world, member
        self.rounds = Rounds(member, members, schedule.timeouts)
        self.state = State(member, schedule.options.ranks)
        self.stage = Stage.ALIVE
        self.gone = False  # with its monitor process
        self.iteration, self.lost = -1, frozenset[int]()  # the progress page
        self.inside: int | None = None
        self.injected: BaseException | None = None
        self.hangs = self.wedges = self.wedged = False
        self.hung_at: float | None = None
        self.noticed = self.aborting = -2  # as the progress page has them
        self.awake = AwakeClock()  # of its monitor process
        self.about, self.woken, self.paused_until = About.STARTING, False, 0.0
        self._calm()
        self.main = Task(self.world, f"{member}", self._main())
        self.thread = Task(self.world, f"{member}'s thread", self._thread())
        self.monitor = Task(self.world, f"{member}'s monitor", self._monitor())

    def _calm(self) -> None:
        self.armed = self.requested = self.raising = self.alive = self.out = self.blocked = False
        self.depth = self.raised = self.swallows = 0

    def poke(self) -> None:
        """Notify its threads that a condition may have changed."""
        self.main.poke()
        self.thread.poke()

    def _go(self, inside: int | None) -> None:
        """Enter a function, or leave it."""
        self.schedule.moves(self.inside, inside)
        self.inside = inside

    def now(self) -> float:
        """The time."""
        return self.world.now

    def is_dead(self) -> bool:
        """Its process has ended."""
        return self.stage is Stage.DEAD

    def enter(self, about: About) -> None:
        """Set the stage on the page; the monitor process looks when something may hang."""
        self.about = about
        if self.schedule.hangs or about is About.LEFT:
            self.woken = True
            self.monitor.poke()

    # Injected faults

    def die(self, *, node: bool) -> None:
        """Kill the process at its current position."""
        if self.stage is Stage.ALIVE:
            self.world.note(self.member, "dies with its node" if node else "dies", self.iteration)
            self.stage, self.gone = Stage.DEAD, node
            self.main.end()
            self.thread.end()
            self._go(None)
            if node:
                self.monitor.end()
            self.monitor.poke()

    def replace_monitor(self) -> None:
        """Kill the monitor process; after a while another one starts from the state on the page."""
        if self.gone or not self.monitor.alive:
            return
        self.world.note(f"{self.member}'s monitor", "is killed", self.iteration)
        self.monitor.end()

        def again() -> None:
            if not self.gone:
                self.monitor = Task(self.world, f"{self.member}'s monitor", self._monitor())

        self.world.after(self.world.rng.uniform(0.0, 0.02), again)

    # The flows

    def _main(self) -> Running:
        flow = MainThread(self.rounds, self.state, self.schedule.rules, self.now)
        return Running(self, flow.run(), MAIN, self._over)

    def pause_monitor(self, seconds: float) -> None:
        """Stop the monitor process, or the renewal of its lease, for a while."""
        self.paused_until = self.world.now + seconds

    def resume_monitor(self) -> None:
        """Resume it."""
        if self.paused_until > self.world.now:
            self.paused_until = self.world.now
            self.monitor.poke()

    def _over(self) -> None:
        self.stage = Stage.FINISHED if self.rounds.view.finished else Stage.LEFT
        self.world.note(self.member, f"has {self.stage.value}", self.iteration)
        self.thread.end()
        self.enter(About.LEFT)

    def _thread(self) -> Running:
        return Running(self, monitor_thread(self.rounds, self.now), THREAD, self.main.poke)

    def _monitor(self) -> Running:
        return Running(self, watch_of(self).run(), MONITOR, lambda: None)

    # The main thread's effects

    def _await(self, effect: effects.Await) -> Until:
        return Until(functools.partial(effect.until, effect.view), effect.deadline)

    def _lose(self, effect: effects.LoseMembers) -> None:
        self.lost |= set(effect.members)

    def _enter_stage(self, effect: effects.EnterStage) -> None:
        self.enter(effect.stage)

    def _begin(self, _: effects.BeginIteration) -> None:
        self.iteration = self.state.iteration

    def _assign(self, effect: effects.Assign) -> BaseException | None:
        iteration, terminated = effect.decision.iteration, set(effect.decision.terminated)
        try:
            assignment = self.schedule.assignment(iteration + 1, self.member)
            assign(assignment, RankAssignmentCtx(self.state, self.schedule.store, terminated))
        except RestartError as error:
            return error
        if iteration >= 0:
            self.state.advance()
        return None

    def _host(self, _: effects.HostRendezvous) -> Waits:
        """Host the next process group's rendezvous."""
        yield self.world.delay()
        self.world.slots[self.state.iteration].hosted = True
        self.schedule.poke()
        return "node:1"

    def _met(self) -> bool:
        return self.iteration == 0 or self.world.slots[self.iteration].hosted

    def set_rendezvous(self, effect: effects.SetRendezvous) -> effects.StoreOperation:
        """The operation that says where an iteration meets."""
        return effects.StoreOperation(SayWhere(bool(effect.address)), effect.iteration)

    def _await_rendezvous(self, effect: effects.AwaitRendezvous) -> Waits:
        somewhere = yield AwaitKey(effect.iteration, "master")
        return SOMEWHERE if somewhere else NOWHERE

    def _holders(self, _: effects.FindHolders) -> Mapping[int, int]:
        """Who is in an atomic section; their leases move."""
        holding = (rank for rank in self.schedule.ranks if rank.depth and rank.iteration == self.iteration)
        return {rank.member: self.world.events for rank in holding}

    def _give_up(self, _: effects.ReadDecision) -> None:
        raise AssertionError(f"deadlock: {self.member} gives up")

    def _declare(self, _: effects.DeclareKeys) -> BaseException | None:
        return self.schedule.fails("keys", self)

    def _recover(self, _: effects.Recover) -> Waits:
        yield self.world.delay()
        return self.schedule.fails("recovery", self)

    def _initialize(self, _: effects.Initialize) -> Waits:
        self.schedule.enters(self)
        self._go(self.iteration)
        yield self.world.delay()
        error = self.schedule.fails("initialize", self)
        if error is not None:
            return self._ended(IterationResult(Outcome.FAILED, error=error))
        return None if self.state.mode is Mode.ACTIVE else self._ended(IterationResult(Outcome.RESERVE))

    def _run(self, _: effects.RunFunction) -> Waits:
        self.armed = True
        self.enter(About.RUNNING)
        ended = IterationResult(Outcome.INTERRUPTED) if self.requested else (yield from self._function())
        return self._ended(ended)

    def _ended(self, ended: IterationResult) -> IterationResult:
        self.armed, self.out = False, True
        self.hangs, self.hung_at = False, None
        self.about = About.UNWINDING
        self._go(None)
        self.thread.poke()
        return ended

    def _describe(self, effect: effects.DescribeArrival) -> Arrival:
        place = "" if self.schedule.options.asks or effect.status is not ArrivalStatus.ALIVE else f"node{self.member}:1"
        return Arrival(
            initial_rank=self.member, rank=self.state.rank, status=effect.status, world_size=self.state.world_size,
            fault=effect.fault, completed=effect.completed, place=place,
        )  # fmt: skip

    def _make_fault(self, effect: effects.MakeFault) -> FaultRecord:
        failed = isinstance(effect.error, Exception)
        return self.fault(Interruption.EXCEPTION if failed else Interruption.BASE_EXCEPTION)

    def _fail(self, effect: effects.ReportInternalError) -> None:
        raise AssertionError(f"internal error: {effect.reason}")

    def _late_fault(self, _: effects.LateFault) -> FaultRecord:
        return self.fault(Interruption.EXCEPTION)

    def fault(self, kind: Interruption) -> FaultRecord:
        """A fault of this rank's."""
        return FaultRecord(
            initial_rank=self.member, rank=self.state.rank, interruption=kind.name, occurred=self.world.now
        )

    def _complete(self, _: effects.Complete) -> None:
        self.schedule.finished(self)

    def _mark_left(self, effect: effects.MarkLeft) -> float:
        self.world.left.add(effect.member)
        return self.world.delay()

    # The function

    def _function(self) -> Generator[Any, Any, IterationResult]:
        """Meet the others, as `init_process_group` does, and work."""
        if not self._met():
            yield Until(lambda: self._disturbed() or self._met())
        if self.raising:
            return IterationResult(Outcome.INTERRUPTED)
        return (yield from self._work()) if self._met() else self._end_by_injected()

    def _work(self) -> Generator[Any, Any, IterationResult]:
        """Work until no more faults are due, or something happens."""
        rng, options = self.world.rng, self.schedule.options
        early = rng.random() < 0.1
        while early or self.world.now < options.active_for:
            early = False
            if self.hangs or self.wedges:
                self.hung_at, self.wedged = self.world.now, self.wedges
                yield Until(lambda: self.raising)
                return IterationResult(Outcome.INTERRUPTED)
            if options.stubborn and rng.random() < options.stubborn:
                self.blocked, self.swallows = rng.random() < 0.5, rng.randint(0, 3)
            if options.atomic and rng.random() < options.atomic:
                if self.requested:
                    return IterationResult(Outcome.INTERRUPTED)
                self.depth = 1
                hold = options.hold and self.member == self.iteration == 0 and options.completion >= LONG
                yield rng.uniform(0.0, 0.01) + (1.5 * LONG if hold else 0.0)
                self.depth = 0
                self.thread.poke()
                if self.requested:
                    return IterationResult(Outcome.INTERRUPTED)
            yield Until(self._disturbed, self.world.now + rng.uniform(0.0, 0.05))
            if self.requested and (self.blocked or self.swallows):  # only an interrupt ends this
                yield Until(lambda: self.raising)
            if self.raising:
                yield rng.uniform(0.0, 0.002)
                return IterationResult(Outcome.INTERRUPTED)
            if self.injected is not None:
                return self._end_by_injected()
        return IterationResult(Outcome.RETURNED)

    def _end_by_injected(self) -> IterationResult:
        error, self.injected = self.injected, None
        assert error is not None
        if isinstance(error, SystemExit):
            return IterationResult(Outcome.EXITED, error=error)
        return IterationResult(Outcome.FAILED if isinstance(error, Exception) else Outcome.LEFT, error=error)

    def _disturbed(self) -> bool:
        return self.raising or self.injected is not None

    def masked(self) -> bool:
        """It is in an atomic section."""
        return self.depth > 0

    def signal(self) -> None:
        """The interrupt signal reaches the main thread."""
        if not self.requested or not self.armed or self.depth or self.alive or self.blocked or self.wedged:
            return
        self.raised += 1
        if self.swallows:
            self.swallows -= 1
            return
        self.alive = self.raising = True
        self.main.poke()

    # The monitor thread's effects

    def _await_event(self, effect: effects.AwaitEvent) -> Waits:
        cause = (yield AwaitKey(effect.iteration, "event"))[0]
        done = cause is not None or self.rounds.view.round.phase is not Phase.OPEN
        assert done, f"I11: a round is completed that {self.member} has not completed"

    def _notice(self, effect: monitor_effects.NoticeEvent) -> None:
        self.noticed = effect.iteration
        round_, (cause,) = self.rounds.view.round, self.world.slots[effect.iteration].event
        again = round_.happened(now=self.world.now) + round_.event(cause, now=self.world.now)
        assert all(isinstance(action, InternalError) for action in again), f"I8: {self.member} acts twice on an event"

    def _last_call(self, effect: monitor_effects.LastCall) -> float:
        return effect.seconds

    def _interrupt(self, _: monitor_effects.InterruptFunction) -> Waits:
        self.requested = True
        self.policy = InterruptPolicy(unwind=10.0)
        yield from self._carry_out(driving.begin(self.policy, self.now))
        while self.masked() and not self.out:
            yield Until(lambda: not self.masked() or self.out)

    def _abort(self, effect: monitor_effects.AbortFunction) -> float:
        self.aborting = effect.iteration
        assert not self.depth, f"I4: {self.member}'s collectives are aborted in an atomic section"
        return self.world.delay()

    def _drive(self, _: monitor_effects.AwaitOut) -> Waits:
        self.main.poke()
        yield from self._carry_out(driving.drive(self.policy, self.now))

    def _carry_out(self, flow: effects.Flow[None]) -> Waits:
        """Carry out what interrupts the main thread."""
        effect, first = next(flow, None), True
        while effect is not None:
            outcome: object = None
            if isinstance(effect, driving.AwaitLeft):
                if not (self.out or (first and effect.deadline <= self.world.now)):
                    yield Until(lambda: self.out, effect.deadline)
                outcome = self.out
            elif isinstance(effect, driving.AwaitUnmasked):
                yield Until(lambda: not self.masked() or self.out)
                outcome = self.out
            else:
                outcome = INTERRUPTS[type(effect)](self, effect)
            first = False
            try:
                effect = flow.send(outcome)
            except StopIteration:
                return

    def _observe(self, _: driving.Observe) -> Seen:
        return Seen(out=self.out or not self.armed, masked=self.masked(), raised=self.raised, alive=self.alive)

    def _fire(self, _: driving.FireInterrupt) -> None:
        assert self.armed, f"I4: {self.member} is interrupted outside the function"
        assert not self.depth, f"I4: {self.member} is interrupted in an atomic section"
        self.signal()

    def _close_blocked(self, _: driving.CloseBlocked) -> None:
        assert self.armed, f"I4: {self.member} is unblocked outside the function"
        self.blocked = False

    def _logged(self, _: driving.ReportStored | driving.ReportSwallowed) -> None:
        """A log line."""

    def _await_decision(self, effect: effects.AwaitDecision) -> Waits:
        decision = yield AwaitKey(effect.iteration, "decision")
        round_, old = self.rounds.view.round, self.world.slots[effect.iteration - 1].decision
        stale = old is not None and round_.decided(old, now=self.world.now)
        assert not stale, f"I8: {self.member} acts in {effect.iteration} on the decision of the round before"
        return decision

    def _reset(self, effect: monitor_effects.ResetInterrupt) -> None:
        round_ = self.rounds.view.round
        decision = self.world.slots[round_.iteration].decision
        assert decision is not None
        again = round_.decided(decision, now=self.world.now)
        assert all(isinstance(action, InternalError) for action in again), f"I8: {self.member} acts twice on a decision"
        self._calm()

    def _decided(self, _: monitor_effects.RoundDecided) -> None:
        self.main.poke()


MAIN: Final = rules_of(
    ignored={
        effects.AwaitGuests, effects.AwaitHostClosed, effects.AwaitMonitorProcess, effects.ClearFrames,
        effects.CollectGarbage, effects.CollectPostponed, effects.CountOut, effects.DeleteIfOver,
        effects.LogWaiting,
        effects.ReleaseFailure, effects.ReleaseGroups, effects.ReportAnnounced, effects.ReportLeft, effects.RoundEnded,
        effects.StopHousekeeping, effects.Terminate, effects.UseRendezvous,
    },
    at_once={
        effects.Assign: Rank._assign,
        effects.BeginIteration: Rank._begin,
        effects.Complete: Rank._complete,
        effects.DeclareKeys: Rank._declare,
        effects.DescribeArrival: Rank._describe,
        effects.EnterStage: Rank._enter_stage,
        effects.FindHolders: Rank._holders,
        effects.LateFault: Rank._late_fault,
        effects.LoseMembers: Rank._lose,
        effects.MakeFault: Rank._make_fault,
        effects.ReadDecision: Rank._give_up,
        effects.ReportInternalError: Rank._fail,
    },
    wishes={
        effects.Await: Rank._await,
        effects.MarkLeft: Rank._mark_left,
        effects.SetRendezvous: Rank.set_rendezvous,
    },
    waits={
        effects.AwaitRendezvous: Rank._await_rendezvous,
        effects.HostRendezvous: Rank._host,
        effects.Initialize: Rank._initialize,
        effects.Recover: Rank._recover,
        effects.RunFunction: Rank._run,
    },
)  # fmt: skip
INTERRUPTS: Final[Mapping[type[effects.Effect], Callable[[Rank, Any], Any]]] = {
    driving.CloseBlocked: Rank._close_blocked,
    driving.FireInterrupt: Rank._fire,
    driving.Observe: Rank._observe,
    driving.ReportStored: Rank._logged,
    driving.ReportSwallowed: Rank._logged,
}
THREAD: Final = rules_of(
    ignored=(),
    at_once={
        monitor_effects.NoticeEvent: Rank._notice,
        monitor_effects.ResetInterrupt: Rank._reset,
        effects.ReportInternalError: Rank._fail,
        monitor_effects.RoundDecided: Rank._decided,
    },
    wishes={
        monitor_effects.AbortFunction: Rank._abort,
        monitor_effects.LastCall: Rank._last_call,
    },
    waits={
        effects.AwaitDecision: Rank._await_decision,
        effects.AwaitEvent: Rank._await_event,
        monitor_effects.AwaitOut: Rank._drive,
        monitor_effects.InterruptFunction: Rank._interrupt,
    },
)
