"""The schedule of interruptions: drawn from a seed, the same for all ranks of a job."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.harness.process.workers.shapes.shape import theme

__all__ = ["PLAN", "Injection", "planned"]

PLAN = "NVRX_TEST_SHAPES"
UNTIMELY = 8
"""One in this number of interruptions does not wait for the loop; a shape's first one waits, and so interrupts it."""


class Injection(NamedTuple):
    """When which shape is interrupted.

    Attributes:
        shape: the index of the shape in its theme.
        after: the delay in seconds.
        waits: whether the delay starts with the loop, and not with the entry of the rank that raises.
    """

    shape: int
    after: float
    waits: bool


def planned(name: str, seed: int, rounds: int) -> list[Injection]:
    """The interruptions of one job: the same for the same seed."""
    rng = random.Random(f"{name} {seed}")
    return [
        Injection(number, rng.uniform(0, shape.span), rng.randrange(UNTIMELY) > 0 or round_ + 1 == shape.every)
        for round_ in range(rounds)
        for number, shape in enumerate(theme(name))
        if (round_ + 1) % shape.every == 0
    ]
