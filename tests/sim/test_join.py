"""Every interleaving of two ranks that enter, die on the way at any point, and are started again.

A new start comes after the old one: all its processes are dead, and their monitor processes have done what
`join_for_dead` does. What the store keeps of them must not keep the new incarnations from each other.
"""

from __future__ import annotations

import copy
import json
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from nvrx_core.inprocess.protocol.join import (
    BY,
    MET,
    MOVED,
    Agree,
    Claim,
    Close,
    Conflicting,
    Count,
    Join,
    Joined,
    Look,
    ReadClaims,
    Step,
    Superseded,
    Wait,
)

RANKS = (0, 1)
STATES_MOST = 200_000


@dataclass
class Entrant:
    """One incarnation of a rank: the process, and after its death the monitor process."""

    rank: int
    life: int
    step: Step | None = None
    join: Join = field(init=False)
    claimed: int = -1  # what the page says
    joined: int = -1
    dead: bool = False
    told: bool = False  # its monitor process is done
    unique: bool = False

    def __post_init__(self) -> None:
        terms = json.dumps({BY: str(self.rank)}) if self.unique else ""
        self.join = Join(len(RANKS), f"{self.rank}.{self.life}", terms=terms, unique=self.unique)
        self.step = self.join.start()


@dataclass
class World:
    """The store, and all who have come."""

    restarts: bool
    lives: int
    verdicts: dict[int, str] = field(default_factory=dict)
    claims: dict[tuple[int, int], str] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    entrants: list[Entrant] = field(default_factory=lambda: [Entrant(rank, 0) for rank in RANKS])

    def key(self) -> Any:
        entrants = tuple((vars(e) | {"join": tuple(vars(e.join).items())}).values() for e in self.entrants)
        store = (self.verdicts.items(), self.claims.items(), self.counts.items())
        return tuple(map(tuple, entrants)), tuple(tuple(sorted(part)) for part in store)

    def carry_out(self, entrant: Entrant, step: Step) -> Step | None:  # noqa: PLR0911 (one answer for each step)
        """One operation on the store; None while it has to wait."""
        join, g = entrant.join, step.generation
        if isinstance(step, Joined | Superseded | Conflicting):
            return None
        match step:
            case Look():
                return join.looked(g, self.verdicts.get(g))
            case Claim():
                return join.claim_read(g, self.claims.setdefault((g, entrant.rank), join.incarnation))
            case Agree():
                return join.terms_read(g, join.terms)
            case Count():
                self.counts[g] = self.counts.get(g, 0) + 1
                return join.counted(g, self.counts[g])
            case ReadClaims():
                return join.claims_read(g, complete=all((g, rank) in self.claims for rank in RANKS))
            case Close(_, verdict):
                return join.decided(g, self.verdicts.setdefault(g, verdict))
            case _:
                return join.decided(g, self.verdicts[g]) if g in self.verdicts else None

    def following(self) -> Iterator[World]:
        """The worlds after one more step of anybody."""
        last = max(entrant.life for entrant in self.entrants)
        for number, entrant in enumerate(self.entrants):
            if not entrant.dead:
                yield from self._moved(number)
                if last < self.lives - 1 or not self.restarts:
                    yield from self._died(number)
            elif not entrant.told:
                yield self._mourned(number)
        if last < self.lives - 1 and all(entrant.dead and entrant.told for entrant in self.entrants):
            again = copy.deepcopy(self)
            again.entrants = [Entrant(rank, last + 1) for rank in RANKS]
            yield again

    def _moved(self, number: int) -> Iterator[World]:
        after = copy.deepcopy(self)
        entrant = after.entrants[number]
        if isinstance(entrant.step, Claim):
            entrant.claimed = entrant.step.generation
        if entrant.step is None or (step := after.carry_out(entrant, entrant.step)) is None:
            return
        entrant.step = step
        if isinstance(step, Joined):
            entrant.joined = step.generation
        yield after

    def _died(self, number: int) -> Iterator[World]:
        for noted in {False, isinstance(self.entrants[number].step, Claim)}:
            after = copy.deepcopy(self)
            entrant = after.entrants[number]
            entrant.dead = True
            if noted and entrant.step is not None:
                entrant.claimed = entrant.step.generation
            entrant.join, entrant.step = Join(len(RANKS), entrant.join.incarnation, entrant.claimed), None
            yield after

    def _mourned(self, number: int) -> World:
        """One operation of the monitor process of a dead rank; as `join_for_dead`."""
        after = copy.deepcopy(self)
        entrant = after.entrants[number]
        if entrant.joined >= 0 or (self.restarts and entrant.claimed < 0):
            entrant.told = True
        elif self.restarts:
            met = after.verdicts.setdefault(entrant.claimed, MOVED) == MET
            entrant.joined, entrant.told = entrant.claimed if met else -1, True
        else:
            step = after.carry_out(entrant, entrant.step or entrant.join.start())
            stops = isinstance(step, Close) and step.verdict == MOVED
            if isinstance(step, Wait | Joined):
                entrant.joined = step.generation
            entrant.step, entrant.told = step, stops or isinstance(step, Wait | Joined | Superseded)
        return after


def assert_good(world: World, *, final: bool) -> None:
    for generation in {entrant.joined for entrant in world.entrants if entrant.joined >= 0}:
        assert all((generation, rank) in world.claims for rank in RANKS if world.verdicts.get(generation) == MET)
    met = {entrant.joined for entrant in world.entrants if isinstance(entrant.step, Joined)}
    assert len(met) <= 1, "two ranks of one start have met in two generations"
    assert not any(isinstance(entrant.step, Superseded) for entrant in world.entrants if not entrant.dead)
    if final:
        living = [entrant for entrant in world.entrants if not entrant.dead]
        if len(living) == len(RANKS) or not world.restarts:
            assert all(isinstance(entrant.step, Joined) for entrant in living), "a rank waits for ever"
            assert len({entrant.joined for entrant in world.entrants}) == 1, "a death is told where nobody is"


@pytest.mark.parametrize(
    ("restarts", "lives", "least"),
    [(True, 1, 20), (True, 2, 1000), (False, 1, 100), (False, 2, 1000)],
    ids=["nobody dies", "all are started again", "nobody is started again", "all are started again by hand"],
)
def test_two_ranks_join_whenever_they_die_and_restart(restarts: bool, lives: int, least: int) -> None:
    start = World(restarts, lives)
    seen, queue = {start.key()}, deque([start])
    while queue:
        world = queue.popleft()
        following = list(world.following())
        assert_good(world, final=not following)
        for after in following:
            if (key := after.key()) not in seen:
                seen.add(key)
                queue.append(after)
        assert len(seen) < STATES_MOST
    print(f"{len(seen)} states")
    assert len(seen) >= least


def test_of_two_processes_of_one_rank_at_most_one_joins() -> None:
    ends = set[frozenset[str]]()
    for seed in range(2000):
        chance = random.Random(seed)
        world = World(restarts=False, lives=0)  # nobody dies
        world.entrants = [Entrant(0, 0, unique=True), Entrant(1, 0, unique=True), Entrant(1, 1, unique=True)]
        moving = list(world.entrants)
        while moving:
            entrant = chance.choice(moving)
            step = world.carry_out(entrant, entrant.step) if entrant.step is not None else None
            if isinstance(entrant.step, Claim):
                entrant.claimed = entrant.step.generation
            if step is None:
                moving.remove(entrant)
            else:
                entrant.step, moving = step, list(world.entrants)
        _, *rivals = world.entrants
        assert sum(isinstance(entrant.step, Joined) for entrant in rivals) <= 1
        conflicts = {entrant.step.generation for entrant in rivals if isinstance(entrant.step, Conflicting)}
        assert len(conflicts) <= 1
        waiting = [entrant for entrant in world.entrants if isinstance(entrant.step, Wait)]
        assert not conflicts or all(entrant.claimed > max(conflicts) for entrant in waiting)
        ends.add(frozenset(type(entrant.step).__name__ for entrant in rivals))
    assert ends == {frozenset({"Conflicting"}), frozenset({"Joined", "Superseded"}), frozenset({"Joined", "Wait"})}
