"""Virtual time: a heap of events, tasks that are generators, and a store of which every operation is atomic.

A task yields what it waits for and is resumed when that is there. Its operations reach the store after a delay and are
answered after another; a task that is ended meanwhile has its operation carried out or lost, as chance will have it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from nvrx_core.inprocess.decision import Decision
from nvrx_core.inprocess.fault import Fault
from nvrx_core.inprocess.round import Action

from .record import Answer, Record, Rules

__all__ = ["Operation", "Sleep", "Steps", "Task", "Until", "Watch", "World"]


@dataclass(frozen=True)
class Operation:
    """Carry out an action on a round's record; resumed with the answer."""

    action: Action
    iteration: int


@dataclass(frozen=True)
class Watch:
    """Wait until a round has its event or its decision; resumed with it."""

    iteration: int
    decision: bool = False


@dataclass(frozen=True)
class Until:
    """Wait until the predicate holds, looked at when the world is poked, or until the deadline."""

    holds: Callable[[], bool]
    deadline: float = math.inf


@dataclass(frozen=True)
class Sleep:
    """Let time pass."""

    seconds: float


Steps = Generator[Operation | Watch | Until | Sleep, Any, None]


class Task:
    """Something that runs, a thread or a process; it looks only at what its owner, a rank, knows."""

    def __init__(self, world: World, owner: int, name: str, steps: Steps) -> None:
        self.world, self.owner, self.name, self.steps = world, owner, name, steps
        self.alive = True
        self.until: Until | None = None
        self.turn = 0
        world.after(world.delay(), lambda: self.resume(0))

    def end(self) -> None:
        """End it where it is."""
        if self.alive:
            self.alive = False
            self.steps.close()
            self.world.waiting[self.owner].pop(self, None)

    def resume(self, turn: int, value: Any = None) -> None:
        """Go on to the next wait, unless something else has resumed it before."""
        if not self.alive or turn != self.turn:
            return
        self.turn += 1
        self.world.waiting[self.owner].pop(self, None)
        try:
            self._wait(self.steps.send(value))
        except StopIteration:
            self.alive = False
        self.world.poke(self.owner)

    def wake(self) -> None:
        """What it waits for holds now."""
        turn = self.turn
        self.world.waiting[self.owner].pop(self, None)
        self.world.after(self.world.delay() / 10, lambda: self.resume(turn))

    def _wait(self, wish: Operation | Watch | Until | Sleep) -> None:
        world, turn = self.world, self.turn
        match wish:
            case Operation():
                world.after(world.delay(), lambda: self._operate(wish, turn))
            case Watch():
                world.watch(wish, lambda found: world.after(world.delay(), lambda: self.resume(turn, found)))
            case Sleep(seconds):
                world.after(seconds, lambda: self.resume(turn))
            case Until():
                world.waiting[self.owner][self] = wish
                if wish.deadline < math.inf:
                    world.after(max(0.0, wish.deadline - world.now), lambda: self.resume(turn), self, turn)

    def _operate(self, wish: Operation, turn: int) -> None:
        if self.alive or self.world.rng.random() < 0.5:
            answer = self.world.perform(wish, self.name)
            self.world.after(self.world.delay(), lambda: self.resume(turn, answer))


class World:
    """Time, chance and the store of one schedule.

    Args:
        seed: of all chance.
        slow: factor of the store's delays.
        rules: how the store carries out actions.
    """

    def __init__(self, seed: int, slow: float, rules: type[Rules] = Rules) -> None:
        self.rng, self.rules = random.Random(seed), rules
        self._random, self._latency = self.rng.random, 3e-5 * slow
        self.now, self.events = 0.0, 0
        self.operations = 0
        self.on_operation: Callable[[int], None] = lambda _: None
        self.records: dict[int, Record] = defaultdict(Record)
        self.left = set[int]()
        self.waiting: dict[int, dict[Task, Until]] = defaultdict(dict)
        self._history: list[tuple[float, str, object, int]] = []
        self._heap: list[tuple[float, int, Callable[[], None], Task | None, int]] = []
        self._order = 0
        self._watches: dict[Watch, list[Callable[[Any], None]]] = defaultdict(list)

    def note(self, who: str, what: object, iteration: int) -> None:
        """Keep in mind what happened; an action stands for its name."""
        self._history.append((self.now, who, what, iteration))

    def history(self) -> str:
        """What happened last."""
        lines = []
        for at, who, what, iteration in self._history[-400:]:
            done = what if isinstance(what, str) else type(what).__name__
            lines.append(f"{at * 1e3:9.3f} ms  {who}: {done} in {iteration}")
        return "\n".join(lines)

    def delay(self) -> float:
        """How long a message takes: mostly short, sometimes long."""
        return float(self._latency / self._random() ** 0.7)

    def after(self, seconds: float, what: Callable[[], None], task: Task | None = None, turn: int = 0) -> None:
        """Do something later; for a task, only if it is still at the same turn."""
        self._order += 1
        heapq.heappush(self._heap, (self.now + seconds, self._order, what, task, turn))

    def poke(self, owner: int) -> None:
        """Something has changed for this rank: look whether what its tasks wait for holds now."""
        for task, until in list(self.waiting[owner].items()):
            if until.holds():
                task.wake()

    def run(self, most: float) -> None:
        """Let time pass until nothing is left to happen."""
        heap, pop = self._heap, heapq.heappop
        while heap:
            at, _, what, task, turn = pop(heap)
            if task is not None and not (task.alive and task.turn == turn):
                continue
            assert at < most, f"still going on after {most} s"
            self.now = at
            self.events += 1
            what()

    # The store

    def perform(self, wish: Operation, who: str) -> Answer:
        """Carry out one operation."""
        before = self.records[wish.iteration]
        done = self.rules.perform(before, wish.action)
        assert done is not None, f"not the store's: {wish.action}"
        after, answer = done
        self.operations += 1
        self.on_operation(self.operations)
        self._history.append((self.now, who, wish.action, wish.iteration))
        assert before.decision in (None, after.decision), f"I6: a second decision of {wish.iteration}: {after.decision}"
        assert before.event in ((), after.event), f"I11: a second event of {wish.iteration}: {after.event}"
        self.records[wish.iteration] = after
        for watch in (Watch(wish.iteration), Watch(wish.iteration, decision=True)):
            if watch in self._watches and self._found(watch) is not None:
                found = self._watches.pop(watch)
                for told in found:
                    told(self._found(watch))
        return answer

    def watch(self, watch: Watch, told: Callable[[Any], None]) -> None:
        """Call `told` when the round has what is waited for."""
        found = self._found(watch)
        if found is not None:
            told(found)
        else:
            self._watches[watch].append(told)

    def _found(self, watch: Watch) -> tuple[Fault | None] | Decision | None:
        record = self.records[watch.iteration]
        return record.decision if watch.decision else (record.event or None)  # type: ignore[return-value]
