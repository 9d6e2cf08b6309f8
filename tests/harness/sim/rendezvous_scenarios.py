"""The scenario of a job, and the machines under test."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import ModuleType

__all__ = ["Machines", "Scenario"]


@dataclass(frozen=True)
class Machines:
    """The modules under test, as shipped or with a mistake in them."""

    coordinator: ModuleType
    policy: ModuleType
    lease: ModuleType
    messages: ModuleType


@dataclass(frozen=True)
class Scenario:
    """What happens in a job; times in seconds.

    Attributes:
        seed: of all delays.
        least, most: nodes.
        max_restarts: as of the command.
        policy: as of the command.
        joins: when each launcher begins.
        failures: when a worker fails, and of which launcher.
        losses: when a launcher vanishes with its workers, and which.
        cuts: when a launcher is cut off, which, and for how long.
        successions: when the coordinator is lost; its launcher stays.
        length: of a worker's run.
    """

    seed: int
    least: int
    most: int
    max_restarts: int
    policy: str
    joins: tuple[float, ...]
    failures: tuple[tuple[float, int], ...] = ()
    losses: tuple[tuple[float, int], ...] = ()
    cuts: tuple[tuple[float, int, float], ...] = ()
    successions: tuple[float, ...] = ()
    length: float = 40.0

    @classmethod
    def draw(cls, seed: int, most_nodes: int = 6) -> Scenario:
        rng = random.Random(seed)
        least = rng.randint(1, most_nodes)
        spares = rng.randint(0, 3)
        count = least + spares

        def some(most: int) -> list[tuple[float, int]]:
            return [(rng.uniform(0, 60), rng.randrange(count)) for _ in range(rng.randint(0, most))]

        lost = dict(reversed([(node, at) for at, node in some(2)]))
        kept = dict(list(lost.items())[:spares])
        return cls(
            seed, least, count, rng.randint(0, 2), rng.choice(("any-failed", "min-healthy")),
            tuple(rng.uniform(0, 5) for _ in range(count)), tuple(some(2)),
            tuple((at, node) for node, at in kept.items()),
            tuple((at, node, rng.choice((0.5, 3.0, 4.5, 6.0, 20.0))) for at, node in some(2)),
            tuple(rng.uniform(0, 60) for _ in range(rng.randint(0, 2))),
        )  # fmt: skip
