"""One search for all checkers: every state that can be reached, what must hold, and how a run may end.

States are visited in the order of their distance from the first one, so that a violation is told with a shortest way
to it.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

__all__ = ["Explorer", "Figures", "Space", "Violation"]

State = TypeVar("State")


class Violation(AssertionError):
    """An invariant does not hold, or a run never ends; tells the steps that lead there."""


class Space(ABC, Generic[State]):
    """States, the steps between them, and what must hold. All methods raise AssertionError where something does not.

    Attributes:
        runs_end: a run must end, so no state may be reached from itself.
    """

    runs_end = True

    @abstractmethod
    def first(self) -> State:
        """Return the state in which all begins."""

    @abstractmethod
    def of(self, state: State) -> Iterable[tuple[str, State]]:
        """Return what can happen next: for people, and the state that follows."""

    def check_end(self, state: State) -> Hashable:
        """Check a state from which nothing can happen; return how all have ended."""
        raise AssertionError(f"deadlock: {state}")

    def key(self, state: State) -> Hashable:
        """Return what identifies a state."""
        return state

    def extent(self, state: State) -> int:
        """Return a size of the state, of which the figures tell the largest."""
        return 0

    def picture(self, state: State) -> str:
        """Return the state for people."""
        return f"  {state}"


@dataclass
class Figures:
    """The totals of an exploration.

    Attributes:
        rounds: the largest extent of a state.
    """

    states: int = 0
    transitions: int = 0
    seconds: float = 0.0
    rounds: int = 0
    ends: set[Hashable] = field(default_factory=set)

    def __str__(self) -> str:
        speed = self.states / self.seconds
        what = f"{self.states:,} states, {self.transitions:,} transitions, {self.rounds} rounds, {len(self.ends)} ends"
        return f"{what} in {self.seconds:.1f} s ({speed:,.0f} states/s)"


class Explorer(Generic[State]):
    """Explores a space.

    Args:
        space: the states.

    Attributes:
        numbers: the states found so far, by their keys, in the order in which they were found.
    """

    def __init__(self, space: Space[State]) -> None:
        self.space = space
        self.numbers: dict[Hashable, int] = {}
        self._parents, self._labels = array("q"), list[str]()

    def explore(self, limit: int = 3_000_000) -> Figures:
        """Visit every state.

        Args:
            limit: how many states there may be.

        Raises:
            Violation: when an invariant breaks, a run neither goes on nor is over, or there are more states.
        """
        collects = gc.isenabled()
        gc.disable()  # there is no garbage here, and collections would take most of the time
        try:
            return self._explore(limit)
        finally:
            if collects:
                gc.enable()

    def _explore(self, limit: int) -> Figures:
        figures, begun, space, first = Figures(), time.perf_counter(), self.space, self.space.first()
        numbers, parents, labels, key = {space.key(first): 0}, array("q", [-1]), [""], space.key
        self.numbers, self._parents, self._labels = numbers, parents, labels
        todo, edges = deque([first]), list[Any]()
        while todo:
            state, out, here = todo.popleft(), array("q"), len(edges)
            try:
                for label, following in space.of(state):
                    new = len(parents)
                    number = numbers.setdefault(key(following), new)
                    if number == new:
                        todo.append(following)
                        parents.append(here)
                        labels.append(label)
                    out.append(number)
                if not out:
                    figures.ends.add(space.check_end(state))
            except AssertionError as error:
                raise Violation(f"{error}\n{self._story(here)}\n{space.picture(state)}") from error
            edges.append(out)
            figures.rounds = max(figures.rounds, space.extent(state))
            if len(parents) > limit:
                raise Violation(f"more than {limit} states: {space}")
        if space.runs_end:
            _forbid_circles(edges)
        figures.states, figures.transitions = len(edges), sum(map(len, edges))
        figures.seconds = time.perf_counter() - begun
        return figures

    def _story(self, here: int) -> str:
        """Return the steps that have led to a state."""
        story = []
        while here > 0:
            story.append(self._labels[here])
            here = self._parents[here]
        return "\n".join(f"  {number}. {label}" for number, label in enumerate(reversed(story), 1))


def _forbid_circles(edges: list[Any]) -> None:
    """Remove states without predecessors repeatedly; the rest lies on a cycle."""
    entering = array("q", bytes(8 * len(edges)))
    for out in edges:
        for number in out:
            entering[number] += 1
    ready, taken = [number for number, count in enumerate(entering) if not count], 0
    while ready:
        taken += 1
        for number in edges[ready.pop()]:
            entering[number] -= 1
            if not entering[number]:
                ready.append(number)
    if taken < len(edges):
        raise Violation(f"a run may go round in circles: {len(edges) - taken} states")
