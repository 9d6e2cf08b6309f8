"""Virtual time: a heap of events, tasks that are coroutines, and a store of which every operation is atomic.

A task awaits a wish and is resumed when that is there: seconds, an operation on the store, a key of a round,
or a condition of its own rank. Operations reach the store after a delay and are answered after another; the operation
of a task that has ended meanwhile is carried out or lost, at random. Code that changes a condition for which a task of
the same rank may wait must poke the rank.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator, Hashable, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Protocol

from nvrx_core.errors import StoreLost
from nvrx_core.inprocess.protocol.ports import StoreFailure

from .slots import Slots

__all__ = [
    "LOSS", "NOTHING", "AwaitKey", "Operation", "Passing", "Task", "Wish", "World", "answer", "passes", "passes_until",
]  # fmt: skip

LOSS: Final = (StoreFailure, StoreLost)
"""The loss of the store, which is raised where its outcome is awaited."""

# How long a message takes: mostly short, sometimes long. Drawn once: a delay is needed at every turn.
DELAYS: Final[tuple[float, ...]] = tuple(((i + 0.5) / 4096) ** -0.7 for i in range(4096))


HORIZON: Final = 30.0
"""Seconds: what happens later is mostly an alarm that nobody awaits any more by then."""
ENDED: Final = -1
PAUSED: Final = -2
NEVER: Final = -3


class Wish:
    """What a flow waits for; resumed with its outcome."""

    __slots__ = ()

    def __await__(self) -> Generator[Wish, Any, Any]:
        return (yield self)


class Operation(Wish):
    """An operation on the keys of a round; resumed with the answer.

    Args:
        operation: a method of `Slots`, which names it in the checker, too.
        iteration: the round.
        args: of the operation.
    """

    __slots__ = ("args", "iteration", "operation")

    def __init__(self, operation: Callable[..., Any], iteration: int, *args: Hashable) -> None:
        self.operation, self.iteration, self.args = operation, iteration, args

    @property
    def name(self) -> str:
        """Its name in the history."""
        return self.operation.__name__.title().replace("_", "")


class AwaitKey(Wish):
    """Wait until a round has the key; resumed with its value."""

    __slots__ = ("iteration", "key")

    def __init__(self, iteration: int, key: str) -> None:
        self.iteration, self.key = iteration, key


class Passing(tuple[Any, ...]):
    """A wish without an outcome: a tuple of one item, which its iterator yields, at less cost than a generator."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, None, None]: ...

    else:
        __await__ = tuple.__iter__


NOTHING: Final = Passing()
"""An operation without a consequence in virtual time."""


async def answer(value: Any) -> Any:
    """An operation without a consequence in virtual time, but with an outcome."""
    return value


def passes_until(holds: Callable[[], Any], deadline: float = math.inf) -> Passing:
    """Wait until the predicate holds, looked at when the rank is poked, or until the deadline."""
    return Passing(((holds, deadline),))


def passes(seconds: float) -> Passing:
    """Wait for so many seconds."""
    return Passing((seconds,))


class Named(Protocol):
    """Whose tasks run."""

    @property
    def name(self) -> str:
        """Its name in the history."""


class Task:
    """Something that runs, a thread or a process; begun after a delay.

    Args:
        world: where.
        owner: whose it is.
        part: which part of it; "" for the whole.
        begin: what it does.
        slots: the rounds of its call.
        ended: told of its end: what it has returned, or the loss of the store by which it has ended.

    Attributes:
        turn: how often it was resumed; `ENDED` when it has ended, `PAUSED` while it is paused.
        until: what it waits for of its own rank.
    """

    __slots__ = (
        "_begin", "_flow", "ended", "held", "owner", "part", "paused_turn", "send", "slots", "throw", "turn", "until",
        "world",
    )  # fmt: skip

    def __init__(
        self,
        world: World,
        owner: Named,
        part: str,
        begin: Callable[[], Coroutine[Any, Any, None]],
        slots: Mapping[int, Slots],
        ended: Callable[[Any], None],
    ) -> None:
        self.world, self.owner, self.part, self.slots, self.ended = world, owner, part, slots, ended
        self._begin = begin
        self._flow: Coroutine[Any, Any, None] | None = None  # begun late: a coroutine that never runs warns of it
        self.send: Callable[[Any], Any] = self._start
        self.throw: Callable[[BaseException], Any]
        self.turn, self.paused_turn = 0, NEVER
        self.held: list[tuple[int, Any]] = []
        self.until: Callable[[], Any] | None = None
        world.resume_soon(self)

    @property
    def name(self) -> str:
        """Its name in the history."""
        return f"{self.owner.name}'s {self.part}" if self.part else self.owner.name

    @property
    def alive(self) -> bool:
        """It has not ended."""
        return self.turn != ENDED

    def end(self) -> None:
        """End it where it is."""
        if self.alive:
            self.turn, self.paused_turn, self.until = ENDED, NEVER, None
            if self._flow is not None:
                self._flow.close()

    def _start(self, _: None) -> Any:
        flow = self._flow = self._begin()
        self.send, self.throw = flow.send, flow.throw
        return flow.send(None)

    def freeze(self) -> None:
        """Pause it: what comes for it waits."""
        if self.turn >= 0:
            self.paused_turn, self.turn = self.turn, PAUSED

    def hold(self, turn: int, value: Any) -> None:
        """Keep what comes while it is paused."""
        if turn == self.paused_turn:
            self.held.append((turn, value))

    def thaw(self) -> None:
        """Go on."""
        if self.turn == PAUSED:
            self.turn, self.paused_turn = self.paused_turn, NEVER
            for turn, value in self.held:
                self.world.resume_soon(self, value, turn=turn)
            self.held.clear()
            self.poke()

    def awaits(self, turn: int) -> bool:
        """What was begun in this turn is still awaited."""
        return turn in (self.turn, self.paused_turn)

    def poke(self) -> None:
        """Go on if what it waits for holds now."""
        if self.until is not None and self.turn != PAUSED and self.until():
            self.until = None
            self.world.resume_soon(self, share=0.1)


class World:
    """Time, chance and the store of one schedule.

    Args:
        seed: of all chance.
        slow: factor of the store's delays.
        rounds: those of the store, by the prefix of their keys.
        remembers: whether the history is kept.
    """

    def __init__(self, seed: int, slow: float, rounds: dict[str, dict[int, Slots]], *, remembers: bool = False) -> None:
        self.rng = random.Random(seed)
        self._bits, self._latency = self.rng.getrandbits, 3e-5 * slow
        self.now, self.events, self.late = 0.0, 0, 0
        self.operations = 0
        self.on_operation: Callable[[Slots, int], None] | None = None
        self.rounds = rounds
        self.remembers = remembers
        self._history: list[tuple[float, str, str, int]] = []
        self._heap: list[tuple[float, int, Any, int, Any, Any]] = []
        self._far: list[tuple[float, int, Any, int, Any, Any]] = []
        self._horizon = HORIZON
        self._order = itertools.count()
        self.after(HORIZON, self._reach_horizon)

    def rounds_of(self, prefix: str) -> dict[int, Slots]:
        """The rounds whose keys have the prefix."""
        return self.rounds.setdefault(prefix, defaultdict(Slots))

    def note(self, who: object, what: str, iteration: int) -> None:
        """Record an event."""
        if self.remembers:
            self._history.append((self.now, str(who), what, iteration))

    def history(self, last: int = 400) -> str:
        """What happened last; 0: all of it."""
        events = self._history[-last:]
        return "\n".join(f"{at * 1e3:9.3f} ms  {who}: {what} in {iteration}" for at, who, what, iteration in events)

    def time(self) -> float:
        """Return the time."""
        return self.now

    def delay(self) -> float:
        """How long a message takes."""
        return self._latency * DELAYS[self._bits(12)]

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something later."""
        heappush(self._heap, (self.now + seconds, next(self._order), None, 0, what, None))

    def resume_soon(self, task: Task, value: Any = None, *, share: float = 1.0, turn: int | None = None) -> None:
        """Resume a task after a delay, or a share of one, unless it was resumed since it had its turn."""
        at = self.now + share * self._latency * DELAYS[self._bits(12)]
        heappush(self._heap, (at, next(self._order), task, task.turn if turn is None else turn, None, value))

    def run(self, most: float) -> None:
        """Let time pass until nothing is left to happen."""
        heap, bits, latency, order, delays = self._heap, self._bits, self._latency, self._order, DELAYS
        while heap:
            at, _, task, turn, what, value = heappop(heap)
            if what is not None:
                self._happen(at, task, turn, what)
                continue
            if task.turn != turn:  # it was resumed before, has ended, or is paused
                if task.turn == PAUSED:
                    task.hold(turn, value)
                continue
            assert at < most, f"still going on after {most} s"
            self.now = at
            self.events += 1
            task.turn = turn = turn + 1
            task.until = None
            try:
                lost = value is not None and isinstance(value, LOSS)
                wish = task.throw(value) if lost else task.send(value)
            except StopIteration as end:
                task.ended(end.value)
                task.turn = ENDED
                continue
            except LOSS as loss:
                task.ended(loss)
                task.turn = ENDED
                continue
            kind = type(wish)
            if kind is float:
                heappush(heap, (at + wish, next(order), task, turn, None, None))
            elif kind is Operation:
                heappush(heap, (at + latency * delays[bits(12)], next(order), task, turn, wish, None))
            elif kind is AwaitKey:
                self._wait(task, wish)
            else:
                task.until, deadline = wish
                if deadline != math.inf:
                    self._set_alarm(task, deadline)

    def _happen(self, at: float, task: Task | None, turn: int, what: Any) -> None:
        """Do what does not resume a task, or carry out its operation, which may be lost when it has ended."""
        self.now = at
        self.events += 1
        if task is None:
            what()
        elif turn in (task.turn, task.paused_turn) or (self._bits(1) and what.operation is not Slots.read_event):
            try:
                answer = self._perform(what, task)
            except StoreFailure as failure:
                answer = failure
            answered_at = at + self._latency * DELAYS[self._bits(12)]
            heappush(self._heap, (answered_at, next(self._order), task, turn, None, answer))

    def _set_alarm(self, task: Task, deadline: float) -> None:
        if deadline <= self.now:
            self.late += 1
            assert self.late < 10_000, f"{task.name} waits until {deadline}, and that is over"
            deadline = self.now
        alarm = deadline, next(self._order), task, task.turn, None, None
        if deadline < self._horizon:
            heappush(self._heap, alarm)
        else:
            self._far.append(alarm)

    def _reach_horizon(self) -> None:
        """Take up the alarms beyond the horizon; most tasks await theirs no more."""
        for alarm in self._far:
            if alarm[2].awaits(alarm[3]):
                heappush(self._heap, alarm)
        self._far.clear()
        self._horizon = math.inf

    def _wait(self, task: Task, wish: AwaitKey) -> None:
        try:
            slots = task.slots[wish.iteration]
        except StoreFailure as failure:
            self.resume_soon(task, failure)
            return
        found = slots.found(wish.key)
        if found is not None:
            self.resume_soon(task, found)
        else:
            slots.waiting.setdefault(wish.key, []).append((task, task.turn))

    # The store

    def _perform(self, wish: Operation, task: Task) -> Any:
        """Carry out one operation, and tell those who have waited for it."""
        iteration = wish.iteration
        slots = task.slots[iteration]
        event, decision = slots.event, slots.decision
        answer = wish.operation(slots, *wish.args)
        self.operations += 1
        if self.on_operation is not None:
            self.on_operation(slots, iteration)
        if self.remembers:
            self._history.append((self.now, task.name, wish.name, iteration))
        if slots.event is not event or slots.decision is not decision or wish.operation is Slots.say_where:
            assert not event or slots.event is event, f"I11: a second event of {iteration}: {slots.event}"
            assert not decision or slots.decision is decision, f"I6: a second decision of {iteration}: {slots.decision}"
            for key in [key for key in slots.waiting if slots.found(key) is not None]:
                for waiting, turn in slots.waiting.pop(key):
                    if waiting.awaits(turn):
                        self.resume_soon(waiting, slots.found(key), turn=turn)
        return answer
