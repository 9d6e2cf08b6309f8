"""The faults of one simulated schedule, drawn from its seed; printed whole when the schedule fails."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace

__all__ = ["LONG", "Options"]

HOSTED = 0.08
"""The share of schedules in which a rank hosts the store; who is paused there takes the store along, and is not."""
LONG = 60.0
"""Seconds that a barrier waits."""


@dataclass(frozen=True)
class Options:
    """One schedule.

    Attributes:
        seed: all else, and all delays, follow from it.
        ranks: how many members.
        crashes, nodes, faults, leaves, hangs: how many are injected, at least two in all; see `job.Config`.
        kills: monitor processes killed, and replaced after a while.
        suspicions: members that live and are taken for dead.
        atomic: how likely a function is in an atomic section.
        discards: members discarded by the rank assignment.
        errors: members on whom alone the rank assignment fails.
        active: the maximum number of active ranks; the others are spares.
        stubborn: how likely a function does not react to an interruption, or swallows it.
        slow: factor of the store's delays.
        completion: seconds within which all must complete; short ones in small jobs only, where all can.
        last_call: seconds from the event to the abort.
        shift: `ShiftRanks`, or else `FillGaps`.
        active_for: seconds during which faults are injected.
        hold: the first atomic section of member 0 lasts for longer than a barrier waits.
        asks: the ranks ask the store where to meet, or else the decision tells, as far as all know the new rank 0.
        exits: functions that exit with code 0.
        wedges: functions that only their monitor process can end.
        plug_ins: plug-ins that fail once: a key function, initialize, or finalize.
        pauses: processes that stand still together with their monitor process, and go on when the others may have
            declared them lost.
        calls: how many calls follow one another.
        hosted: the process of member 0 of each call hosts the call's store.
    """

    seed: int
    ranks: int
    crashes: int
    nodes: int
    faults: int
    leaves: int
    hangs: int
    kills: int
    suspicions: int
    atomic: float
    discards: int
    errors: int
    active: int
    stubborn: float
    slow: float
    completion: float
    last_call: float
    shift: bool
    active_for: float
    hold: bool
    asks: bool
    exits: int
    plug_ins: int
    wedges: int
    pauses: int
    calls: int
    hosted: bool = False

    @classmethod
    def draw(cls, seed: int, fewest: int = 3, most: int = 16) -> Options:
        """The options that a seed stands for; most schedules have few ranks, where faults meet each other soonest."""
        rng = random.Random(seed)
        ranks = fewest + min(int(rng.expovariate(0.4)), most - fewest)
        if rng.random() < 0.1:
            ranks = rng.randint(fewest, most)

        def some(share: float, most: int = 2) -> int:
            return rng.randint(1, most) if rng.random() < share else 0

        crashes, nodes, faults, leaves, hangs = some(0.6), some(0.15, 1), some(0.6), some(0.2, 1), some(0.2)
        few = max(0, 2 - crashes - nodes - faults - leaves - hangs)
        more = rng.randint(0, few)
        options = cls(
            seed=seed, ranks=ranks, crashes=crashes + more, nodes=nodes, faults=faults + few - more, leaves=leaves,
            hangs=hangs, kills=some(0.3), suspicions=some(0.1, 1), atomic=rng.choice((0.0, 0.3)),
            discards=some(0.2), errors=some(0.1, 1), active=ranks if rng.random() < 0.6 else rng.randint(1, ranks),
            stubborn=rng.choice((0.0, 0.0, 0.3)), slow=rng.choice((0.1, 1.0, 1.0, 10.0)),
            completion=rng.choice((1e3, 1e3, 0.05 if ranks <= 16 else 1e3)), last_call=rng.choice((0.0, 0.0, 0.002)),
            shift=rng.random() < 0.7,
            active_for=rng.choice((0.01, 0.03, 0.1)) * (1 if ranks <= 16 else 20), hold=rng.random() < 0.05,
            asks=rng.random() < 0.3, exits=some(0.1, 1), plug_ins=some(0.1), wedges=some(0.05, 1),
            pauses=some(0.05, 1), calls=2 if rng.random() < 0.1 else 1,
        )  # fmt: skip
        if rng.random() >= HOSTED:
            return options
        return replace(options, hosted=True, calls=rng.randint(1, 2), pauses=0, crashes=max(1, options.crashes))

    @property
    def beat(self) -> float:
        """Seconds between two renewals of a lease; who holds a section does so for minutes."""
        return 0.3 if self.hold else 0.03 * max(1.0, self.slow)

    @property
    def troubles(self) -> int:
        """How many restarts there may be at most, but for late completions."""
        return (
            self.crashes
            + self.nodes
            + self.faults
            + self.leaves
            + self.hangs
            + self.suspicions
            + self.errors
            + (self.exits + self.plug_ins + self.wedges + self.pauses)
        )

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
