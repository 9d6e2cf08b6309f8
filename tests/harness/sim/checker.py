"""An explicit-state checker: every interleaving of a small job, over the real machines of a round.

`Checker.explore` visits every reachable state and asserts the invariants on the way. At the end, every state without
successors must be a final one, and the graph must be acyclic: so every run terminates properly.
"""

from __future__ import annotations

import gc
import time
from array import array
from dataclasses import dataclass, field
from typing import Any

from .job import Config
from .steps import Steps
from .two_calls import TwoCalls

__all__ = ["Checker", "Config", "Figures", "Violation"]


class Violation(AssertionError):
    """An invariant does not hold, or a run never ends; tells the steps that lead there."""


@dataclass
class Figures:
    """The totals of an exploration."""

    states: int = 0
    transitions: int = 0
    seconds: float = 0.0
    rounds: int = 0
    ends: set[tuple[str, ...]] = field(default_factory=set)

    def __str__(self) -> str:
        speed = self.states / self.seconds
        what = f"{self.states:,} states, {self.transitions:,} transitions, {self.rounds} rounds, {len(self.ends)} ends"
        return f"{what} in {self.seconds:.1f} s ({speed:,.0f} states/s)"


class Checker:
    """Explores one job.

    Args:
        config: the job.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.steps = config, TwoCalls(config) if config.second else Steps(config)
        self.states: list[Any] = []

    def explore(self, limit: int = 3_000_000) -> Figures:
        """Visit every state.

        Raises:
            Violation: when an invariant breaks, or a run neither goes on nor is over.
        """
        collects = gc.isenabled()
        gc.disable()  # there is no garbage here, and collections would take most of the time
        try:
            return self._explore(limit)
        finally:
            if collects:
                gc.enable()

    def _explore(self, limit: int) -> Figures:
        figures, begun, first = Figures(), time.perf_counter(), self.steps.first()
        numbers, parents, labels = {first: 0}, array("q", [-1]), [""]
        states = self.states = [first]
        edges: list[array[int]] = []
        while len(edges) < len(states):
            job, out = states[len(edges)], array("q")
            try:
                for label, following in self.steps.of(job):
                    number = numbers.setdefault(following, len(states))
                    if number == len(states):
                        states.append(following)
                        parents.append(len(edges))
                        labels.append(label)
                    out.append(number)
                if not out:
                    figures.ends.add(self.steps.check_end(job))
            except AssertionError as error:
                raise Violation(f"{error}\n{_story(len(edges), parents, labels)}\n{self.steps.picture(job)}") from error
            edges.append(out)
            if len(states) > limit:
                raise Violation(f"more than {limit} states: {self.config}")
        _forbid_circles(edges)
        figures.states, figures.rounds = len(states), max(len(job.records) for job in states)
        figures.transitions, figures.seconds = sum(map(len, edges)), time.perf_counter() - begun
        return figures


def _story(here: int, parents: array[int], labels: list[str]) -> str:
    story = []
    while here > 0:
        story.append(labels[here])
        here = parents[here]
    return "\n".join(f"  {number}. {label}" for number, label in enumerate(reversed(story), 1))


def _forbid_circles(edges: list[array[int]]) -> None:
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
