"""One simulated rank: its main thread, monitor thread and monitor process, in the shape of the shells.

What `nvrx_core.inprocess.call`, `monitor_thread` and `monitor_process` do with the machines, done here with the same
machines in the same order, on virtual time. A name that they have means the same here. One file, though a long one: it
is read beside those three.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

from nvrx_core.errors import RankDiscarded, RestartError
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.decision import Arrival, Decision, Standing
from nvrx_core.inprocess.fault import Fault
from nvrx_core.inprocess.interruption import Fire, InterruptionMachine, Seen
from nvrx_core.inprocess.round import (
    Action,
    Announce,
    AskHolders,
    Enter,
    Finish,
    GiveUp,
    LateCompletion,
    Leave,
    Obituary,
    ReadEvent,
    Round,
    WaitFor,
)
from nvrx_core.rank_assignment.base import Mode, RankAssignmentCtx, State
from nvrx_core.rank_assignment.composition import assign

from .options import LONG
from .slots import LookUp, SayWhere
from .world import Operation, Steps, Task, Until, Watch

if TYPE_CHECKING:
    from .schedule import Schedule

__all__ = ["Rank", "Stage"]


class Stage(enum.Enum):
    """How it stands with a rank."""

    ALIVE = "alive"
    FINISHED = "finished"
    LEFT = "left"
    DEAD = "dead"


class How(enum.Enum):
    """How a function ended."""

    RETURNED = enum.auto()
    RESERVE = enum.auto()
    INTERRUPTED = enum.auto()
    FAILED = enum.auto()
    LEFT = enum.auto()


class View:
    """A round, as both threads see it."""

    __slots__ = ("aborted", "decision", "finished", "round")

    def __init__(self, round_: Round) -> None:
        self.round = round_
        self.finished = self.aborted = False
        self.decision: Decision | None = None


class Rank:
    """One rank.

    Args:
        schedule: what it lives in.
        member: its initial rank.
        members: those of all.
    """

    def __init__(self, schedule: Schedule, member: int, members: frozenset[int]) -> None:
        size = schedule.options.ranks
        self.schedule, self.world, self.member = schedule, schedule.world, member
        self.view = View(Round(-1, member, members, schedule.timeouts))
        self.state = State(member, size)
        self.stage = Stage.ALIVE
        self.gone = False  # with its monitor process
        self.iteration, self.lost = -1, frozenset[int]()  # the progress page
        self.inside: int | None = None
        self.strike: How | None = None
        self.place: bool | None = None
        self.hung = False
        self.suspects = set[int]()
        self._calm()
        self.main = Task(self.world, f"{member}", self._main())
        self.thread = Task(self.world, f"{member}'s thread", self._thread())
        self.monitor = Task(self.world, f"{member}'s monitor", self._monitor())

    def _calm(self) -> None:
        self.armed = self.requested = self.raising = self.alive = self.out = self.blocked = False
        self.depth = self.raised = self.swallows = 0

    def poke(self) -> None:
        """What one of its threads may wait for has changed."""
        self.main.poke()
        self.thread.poke()

    def _go(self, inside: int | None) -> None:
        """Enter a function, or leave it."""
        self.schedule.moves(self.inside, inside)
        self.inside = inside

    # What strikes it

    def die(self, *, node: bool) -> None:
        """The process ends, wherever it is."""
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
        """The monitor process is killed; after a while there is another one, which knows what the page says."""
        if self.gone or not self.monitor.alive:
            return
        self.world.note(f"{self.member}'s monitor", "is killed", self.iteration)
        self.monitor.end()

        def again() -> None:
            if not self.gone:
                self.monitor = Task(self.world, f"{self.member}'s monitor", self._monitor())

        self.world.after(self.world.rng.uniform(0.0, 0.02), again)

    # The main thread

    def _main(self) -> Steps:
        decision = yield from self._arrive(Standing.ALIVE)
        if self.member in decision.lost:
            return self._end(Stage.LEFT)
        while True:
            left = yield from self._prepare(decision)
            how = How.LEFT if left else (yield from self._execute())
            if how in (How.RETURNED, How.RESERVE) and (yield from self._complete(how)):
                return self._end(Stage.FINISHED)
            following = None if left else (yield from self._restart(how))
            if following is None:
                return self._end(Stage.LEFT)
            decision = following

    def _end(self, stage: Stage) -> None:
        self.world.note(self.member, f"has {stage.value}", self.iteration)
        self.stage = stage
        self.world.left.add(self.member)
        self.thread.end()
        self.monitor.poke()
        if stage is Stage.FINISHED:
            self.schedule.finished(self)

    def _play(self, machine: Round | Obituary, actions: Iterable[Action]) -> Generator[Any, Any, list[Action]]:
        pending, rest = list(actions), list[Action]()
        for action in pending:
            if isinstance(action, Finish):
                rest.append(action)
                continue
            answer = yield Operation(action, machine.iteration)
            if answer is not None and (answer[0] != "event" or isinstance(machine, Obituary)):
                method, *told = answer
                pending += getattr(machine, method)(*told, now=self.world.now)
        return rest

    def _wait(self, view: View, arrived: Callable[[], Any]) -> Generator[Any, Any, None]:
        while not arrived():
            actions = view.round.tick(now=self.world.now)
            if actions:
                if any(isinstance(action, AskHolders) for action in actions):
                    actions = view.round.held_up(self._holders(), now=self.world.now)
                assert not any(isinstance(action, GiveUp) for action in actions), f"deadlock: {self.member} gives up"
                actions = tuple(action for action in actions if not isinstance(action, WaitFor))
                if any(isinstance(action, LateCompletion) for action in actions):
                    actions = view.round.fault(self._fault(Interruption.EXCEPTION), now=self.world.now)
                yield from self._play(view.round, actions)
            if not arrived():
                yield Until(arrived, view.round.deadline)

    def _holders(self) -> dict[int, int]:
        """Who is in an atomic section; their leases move."""
        holding = (rank for rank in self.schedule.ranks if rank.depth and rank.iteration == self.iteration)
        return {rank.member: self.world.events for rank in holding}

    def _arrive(self, standing: Standing, fault: Fault | None = None) -> Generator[Any, Any, Decision]:
        view = self.view
        yield from self._play(view.round, view.round.arrive(self._arrival(standing, fault), now=self.world.now))
        yield from self._wait(view, lambda: view.decision is not None)
        assert view.decision is not None
        return view.decision

    def _prepare(self, decision: Decision) -> Generator[Any, Any, bool]:
        """Take the place that the decision gives; True when there is none."""
        self.lost |= set(decision.lost)
        offered = decision.place_of(self.schedule.leader(self.state.world_size, decision.terminated))
        try:
            assignment = self.schedule.assignment(decision.iteration + 1, self.member)
            assign(assignment, RankAssignmentCtx(self.state, self.schedule.store, set(decision.terminated)))
        except RestartError as error:
            yield from self._leave_early(error)
            return True
        if decision.iteration >= 0:
            self.state.advance()
            yield from self._meet(asks=offered is None)
        else:
            yield self.world.delay()
        self.iteration = self.state.iteration
        return False

    def _meet(self, *, asks: bool) -> Generator[Any, Any, None]:
        """Host the next process group's meeting, or learn where it is."""
        state = self.state
        if state.active_rank == 0:
            yield Operation(SayWhere(True), state.iteration)
            self.schedule.poke()
        self.place = True
        if asks and state.active_rank is not None:
            self.place = yield Watch(state.iteration, "master")

    def _met(self) -> bool:
        """The place where the process group meets is hosted."""
        return self.iteration == 0 or bool(self.world.slots[self.iteration].master)

    def _leave_early(self, error: RestartError) -> Generator[Any, Any, None]:
        view, fault = self.view, None
        if not isinstance(error, RankDiscarded):
            fault = self._fault(Interruption.EXCEPTION)
            yield from self._play(view.round, view.round.fault(fault, now=self.world.now))
            yield Operation(SayWhere(False), view.round.iteration)
        leave = view.round.leave(self._arrival(Standing.LEAVING, fault), now=self.world.now)
        yield from self._play(view.round, leave)

    def _execute(self) -> Generator[Any, Any, How]:
        self.schedule.enters(self)
        self._go(self.iteration)
        try:
            yield self.world.delay()
            if self.state.mode is not Mode.ACTIVE:
                return How.RESERVE
            if self.iteration > 0 and not self.place:  # rank 0 is lost, and its fault is told
                yield from self._wait(self.view, lambda: self.view.aborted)
            self.armed = True
            return How.INTERRUPTED if self.requested else (yield from self._function())
        finally:
            self.armed, self.out = False, True
            self._go(None)
            self.thread.poke()

    def _function(self) -> Generator[Any, Any, How]:
        """Meet the others, as `init_process_group` does, and work."""
        if not self._met():
            yield Until(lambda: self._disturbed() or self._met())
        if self.raising:
            return How.INTERRUPTED
        return (yield from self._work()) if self._met() else self._struck()

    def _work(self) -> Generator[Any, Any, How]:
        """Work until all troubles are over, or something happens."""
        rng, options = self.world.rng, self.schedule.options
        early = rng.random() < 0.1
        while early or self.world.now < options.active_for:
            early = False
            if options.stubborn and rng.random() < options.stubborn:
                self.blocked, self.swallows = rng.random() < 0.5, rng.randint(0, 3)
            if options.atomic and rng.random() < options.atomic:
                if self.requested:
                    return How.INTERRUPTED
                self.depth = 1
                hold = options.hold and self.member == self.iteration == 0 and options.completion >= LONG
                yield rng.uniform(0.0, 0.01) + (1.5 * LONG if hold else 0.0)
                self.depth = 0
                self.thread.poke()
                if self.requested:
                    return How.INTERRUPTED
            yield Until(self._disturbed, self.world.now + rng.uniform(0.0, 0.05))
            if self.requested and (self.blocked or self.swallows):  # only an interrupt ends this
                yield Until(lambda: self.raising)
            if self.raising:
                yield rng.uniform(0.0, 0.002)
                return How.INTERRUPTED
            if self.strike is not None:
                return self._struck()
        return How.RETURNED

    def _struck(self) -> How:
        how, self.strike = self.strike, None
        assert how is not None
        return how

    def _disturbed(self) -> bool:
        return self.raising or self.strike is not None

    def masked(self) -> bool:
        """It is in an atomic section."""
        return self.depth > 0

    def signal(self) -> None:
        """The interrupt signal reaches the main thread."""
        if not self.requested or not self.armed or self.depth or self.alive or self.blocked:
            return
        self.raised += 1
        if self.swallows:
            self.swallows -= 1
            return
        self.alive = self.raising = True
        self.main.poke()

    def _complete(self, how: How) -> Generator[Any, Any, bool]:
        view = self.view
        yield from self._play(view.round, view.round.completed(now=self.world.now))
        if how is How.RETURNED:
            view.round.waits_for_completion(now=self.world.now)
        yield from self._wait(view, lambda: view.finished or view.aborted)
        return view.finished

    def _restart(self, how: How) -> Generator[Any, Any, Decision | None]:
        view, fault = self.view, None
        if how in (How.FAILED, How.LEFT):
            fault = self._fault(Interruption.EXCEPTION if how is How.FAILED else Interruption.BASE_EXCEPTION)
            yield from self._play(view.round, view.round.fault(fault, now=self.world.now))
        yield from self._wait(view, lambda: view.aborted)
        yield self.world.delay()  # finalize, health check
        leaving = how is How.LEFT
        decision = yield from self._arrive(Standing.LEAVING if leaving else Standing.ALIVE, fault)
        return None if leaving or self.member in decision.lost else decision

    def _arrival(self, standing: Standing, fault: Fault | None) -> Arrival:
        size = self.state.world_size
        return Arrival(
            initial_rank=self.member, rank=self.state.rank, standing=standing, world_size=size, fault=fault,
            place="" if self.schedule.options.asks else f"node{self.member}:1",
        )  # fmt: skip

    def _fault(self, kind: Interruption) -> Fault:
        return Fault(initial_rank=self.member, rank=self.state.rank, interruption=kind.name, struck=self.world.now)

    # The monitor thread

    def _thread(self) -> Steps:
        while True:
            view = self.view
            if view.round.iteration >= 0:
                cause = (yield Watch(view.round.iteration, "event"))[0]
                actions = view.round.happened(now=self.world.now)
                reads = any(isinstance(action, ReadEvent) for action in actions)
                assert reads or cause or not actions, f"I11: a round is completed that {self.member} has not completed"
                if reads:
                    yield self.world.delay()
                    actions = view.round.event(cause, now=self.world.now)
                again = view.round.happened(now=self.world.now) + view.round.event(cause, now=self.world.now)
                assert not again, f"I8: {self.member} hears an event twice"
                if any(isinstance(action, Finish) for action in actions):
                    view.finished = True
                    self.main.poke()
                    return
                if actions:
                    yield from self._end_function(view)
            decision = yield Watch(view.round.iteration, "decision")
            enter = self._decided(view, decision)
            if enter is None:
                self.main.poke()
                return
            self._calm()
            members = self.schedule.one(enter.members)
            self.view = View(Round(view.round.iteration + 1, self.member, members, self.schedule.timeouts))
            self.main.poke()

    def _decided(self, view: View, decision: Decision) -> Enter | None:
        """The round's decision; one of an old round changes nothing."""
        now, old = self.world.now, self.world.slots[decision.iteration - 1].decision
        stale = old is not None and view.round.decided(old, now=now)
        assert not stale, f"I8: {self.member} acts in {decision.iteration} on the decision of the round before"
        actions = view.round.decided(decision, now=now)
        assert not view.round.decided(decision, now=now), f"I8: {self.member} hears a decision twice"
        view.decision = decision
        action = actions[0] if actions else None
        if isinstance(action, Enter | Leave):
            view.decision = action.decision
        return action if isinstance(action, Enter) else None

    def _end_function(self, view: View) -> Generator[Any, Any, None]:
        if view.round.timeouts.last_call:
            yield view.round.timeouts.last_call
        self.requested = True
        self.signal()
        while self.masked() and not self.out:
            yield Until(lambda: not self.masked() or self.out)
        assert not self.depth, f"I4: {self.member}'s collectives are aborted in an atomic section"
        yield self.world.delay()
        view.aborted = True
        self.main.poke()
        yield from self._drive()

    def _drive(self) -> Generator[Any, Any, None]:
        machine = InterruptionMachine(unwind=10.0)
        while True:
            out = self.out or not self.armed
            seen = Seen(out=out, masked=self.masked(), raised=self.raised, alive=self.alive)
            for action in machine.tick(seen, now=self.world.now):
                assert not out, f"I4: {self.member} is interrupted outside the function"
                assert not self.depth, f"I4: {self.member} is interrupted in an atomic section"
                if isinstance(action, Fire):
                    self.signal()
                else:
                    self.blocked = False
            if out:
                return
            if seen.masked:
                yield Until(lambda: not self.masked() or self.out)
            else:
                yield Until(lambda: self.out, machine.deadline)

    # The monitor process

    def _monitor(self) -> Steps:
        spoken = self.world.now
        while True:
            if self.stage is Stage.DEAD:
                yield from self._bury()
                return
            if self.stage is not Stage.ALIVE:
                return
            stale = self._stale()
            if self.hung:
                self.hung = False
                if self.inside is not None:
                    yield Operation(Announce(self._fault(Interruption.SOFT_TIMEOUT)), self.iteration)
            elif stale and self.world.now >= spoken:
                yield from self._speak_for(min(stale))
                spoken = self.world.now + 0.005
            else:
                yield Until(functools.partial(self._news, stale), spoken if stale else math.inf)

    def _news(self, known: set[int]) -> bool:
        return self.stage is not Stage.ALIVE or self.hung or bool(self._stale() - known)

    def _stale(self) -> set[int]:
        """Members of whom no sign of life is seen, or is said to be seen."""
        if not self.schedule.stale and not self.suspects:
            return set()
        known = set(range(self.schedule.options.ranks)) - self.lost - {self.member}
        return {m for m in known & (self.schedule.stale | self.suspects) if m not in self.world.left}

    def _speak_for(self, member: int) -> Generator[Any, Any, None]:
        self.suspects.discard(member)
        fault = Fault(initial_rank=member, rank=-1, interruption=Interruption.UNRESPONSIVE.name, struck=self.world.now)
        obituary: Obituary | None = Obituary(self.iteration, member, self._members(), fault)
        while obituary is not None:
            yield from self._play(obituary, obituary.died(now=self.world.now))
            yield Operation(SayWhere(False), obituary.iteration)
            decision = (yield Operation(LookUp(), obituary.iteration))[1]
            if decision is None:
                return
            obituary = self._follow(obituary, decision) if member in self.schedule.stale else None
            if member in decision.lost:
                self.world.left.add(member)

    def _bury(self) -> Generator[Any, Any, None]:
        fault = self._fault(Interruption.TERMINATED)
        obituary: Obituary | None = Obituary(self.iteration, self.member, self._members(), fault)
        while obituary is not None:
            if (yield from self._play(obituary, obituary.died(now=self.world.now))):
                break
            yield Operation(SayWhere(False), obituary.iteration)
            decision = yield Watch(obituary.iteration, "decision")
            obituary = self._follow(obituary, decision)
        self.world.left.add(self.member)

    def _follow(self, obituary: Obituary, decision: Decision) -> Obituary | None:
        actions = obituary.decided(decision, now=self.world.now)
        return next((obituary.next(each.members) for each in actions if isinstance(each, Enter)), None)

    def _members(self) -> frozenset[int]:
        return frozenset(range(self.schedule.options.ranks)) - self.lost
