"""Every interleaving of two ranks that enter, die on the way at any point, and are started again.

A new start comes after the old one: all its processes are dead, and their monitor processes have done what
`join_for_dead` does. What the store keeps of them must not keep the new incarnations from each other.
"""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from nvrx_core.inprocess.protocol.join import BY, MET, MOVED, Conflicting, Join, Joined, JoinResult, Superseded
from tests.harness.asked import Asked, Asking
from tests.harness.sim.explorer import Explorer, Space
from tests.harness.sim.fingerprint import position

RANKS = (0, 1)
PORT: Any = Asking()
Going = tuple[Asked | JoinResult, Any]
"""What a flow awaits or has ended with, and its position."""


@functools.cache
def flow_at(incarnation: str, claimed: int, dead: bool, terms: str, answers: tuple[object, ...]) -> Going:
    """Where the flow of a rank is after these answers."""
    waiting = None if dead else PORT
    flow = Join(PORT, waiting, len(RANKS), incarnation, claimed=claimed, terms=terms, unique=bool(terms)).run()
    try:
        asked: Asked = flow.send(None)
        for answer in answers:
            asked = flow.send(answer)
    except StopIteration as end:
        result: JoinResult = end.value
        return result, ()
    try:
        return asked, position(flow)
    finally:
        flow.close()


@dataclass
class Entrant:
    """One incarnation of a rank: the process, and after its death the monitor process."""

    rank: int
    life: int
    begins: int = -1  # the generation that the flow has claimed when it begins
    answers: tuple[object, ...] = ()
    claimed: int = -1  # what the page says
    joined: int = -1
    dead: bool = False
    told: bool = False  # its monitor process is done
    unique: bool = False

    @property
    def incarnation(self) -> str:
        return f"{self.rank}.{self.life}"

    @property
    def going(self) -> Going:
        terms = json.dumps({BY: str(self.rank)}) if self.unique else ""
        return flow_at(self.incarnation, self.begins, self.dead, terms, self.answers)

    @property
    def at(self) -> Asked | JoinResult:
        return self.going[0]

    def key(self) -> tuple[object, ...]:
        at, where = self.going
        going = (at.name, at.args, where) if isinstance(at, Asked) else at
        return self.rank, self.life, self.begins, going, self.claimed, self.joined, self.dead, self.told

    def is_about_to_claim(self) -> bool:
        return isinstance(self.at, Asked) and self.at.name == "claim"


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
        store = (self.verdicts.items(), self.claims.items(), self.counts.items())
        return tuple(entrant.key() for entrant in self.entrants), tuple(tuple(sorted(part)) for part in store)

    def carry_out(self, entrant: Entrant) -> bool:
        """One operation on the store; False while the rank has to wait, or has no more to do."""
        if not isinstance(entrant.at, Asked):
            return False
        g: int = entrant.at.args[0]
        answer: object
        match entrant.at.name:
            case "read_verdict":
                answer = self.verdicts.get(g)
            case "claim":
                answer = self.claims.setdefault((g, entrant.rank), entrant.incarnation)
            case "agree":
                answer = entrant.at.args[1]
            case "count_claim":
                self.counts[g] = self.counts.get(g, 0) + 1
                answer = self.counts[g]
            case "all_claimed":
                answer = all((g, rank) in self.claims for rank in RANKS)
            case "close":
                answer = self.verdicts.setdefault(g, entrant.at.args[1])
            case _:
                if g not in self.verdicts:
                    return False
                answer = self.verdicts[g]
        entrant.answers += (answer,)
        return True

    def following(self) -> Iterator[tuple[str, World]]:
        """The worlds after one more step of anybody, and what the step is."""
        last = max(entrant.life for entrant in self.entrants)
        for number, entrant in enumerate(self.entrants):
            who = f"rank {entrant.incarnation}"
            if not entrant.dead:
                yield from ((f"{who} moves", after) for after in self._moved(number))
                if last < self.lives - 1 or not self.restarts:
                    yield from ((f"{who} dies", after) for after in self._died(number))
            elif not entrant.told:
                yield f"the monitor process of {who} moves", self._mourned(number)
        if last < self.lives - 1 and all(entrant.dead and entrant.told for entrant in self.entrants):
            again = copy.deepcopy(self)
            again.entrants = [Entrant(rank, last + 1) for rank in RANKS]
            yield "all are started again", again

    def _moved(self, number: int) -> Iterator[World]:
        after = copy.deepcopy(self)
        entrant = after.entrants[number]
        if entrant.is_about_to_claim():
            entrant.claimed = entrant.at.args[0]  # type: ignore[union-attr]
        if not after.carry_out(entrant):
            return
        if isinstance(entrant.at, Joined):
            entrant.joined = entrant.at.generation
        yield after

    def _died(self, number: int) -> Iterator[World]:
        for noted in {False, self.entrants[number].is_about_to_claim()}:
            after = copy.deepcopy(self)
            entrant = after.entrants[number]
            if noted:
                entrant.claimed = entrant.at.args[0]  # type: ignore[union-attr]
            entrant.dead, entrant.begins, entrant.answers = True, entrant.claimed, ()
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
            after.carry_out(entrant)
            if isinstance(entrant.at, Joined):
                entrant.joined = entrant.at.generation
            entrant.told = not isinstance(entrant.at, Asked)
        return after


class Joining(Space[World]):
    """Two ranks that enter."""

    def __init__(self, *, restarts: bool, lives: int) -> None:
        self.restarts, self.lives = restarts, lives

    def first(self) -> World:
        return World(self.restarts, self.lives)

    def of(self, world: World) -> Iterator[tuple[str, World]]:
        assert_good(world)
        return world.following()

    def check_end(self, world: World) -> Hashable:
        living = [entrant for entrant in world.entrants if not entrant.dead]
        if len(living) == len(RANKS) or not world.restarts:
            assert all(isinstance(entrant.at, Joined) for entrant in living), "a rank waits for ever"
            assert len({entrant.joined for entrant in world.entrants}) == 1, "a death is told where nobody is"
        return len(living)

    def key(self, world: World) -> Hashable:
        return world.key()  # type: ignore[no-any-return]


def assert_good(world: World) -> None:
    for generation in {entrant.joined for entrant in world.entrants if entrant.joined >= 0}:
        assert all((generation, rank) in world.claims for rank in RANKS if world.verdicts.get(generation) == MET)
    living = [entrant for entrant in world.entrants if not entrant.dead]
    met = {entrant.joined for entrant in living if isinstance(entrant.at, Joined)}
    assert len(met) <= 1, "two ranks of one start have met in two generations"
    assert not any(isinstance(entrant.at, Superseded) for entrant in living)


@pytest.mark.parametrize(
    ("restarts", "lives", "least"),
    [(True, 1, 20), (True, 2, 1000), (False, 1, 100), (False, 2, 1000)],
    ids=["nobody dies", "all are started again", "nobody is started again", "all are started again by hand"],
)
def test_two_ranks_join_whenever_they_die_and_restart(restarts: bool, lives: int, least: int) -> None:
    figures = Explorer(Joining(restarts=restarts, lives=lives)).explore()
    print(figures)
    assert figures.states >= least


def test_of_two_processes_of_one_rank_at_most_one_joins() -> None:
    ends = set[frozenset[str]]()
    for seed in range(2000):
        chance = random.Random(seed)
        world = World(restarts=False, lives=0)  # nobody dies
        world.entrants = [Entrant(0, 0, unique=True), Entrant(1, 0, unique=True), Entrant(1, 1, unique=True)]
        moving = list(world.entrants)
        while moving:
            entrant = chance.choice(moving)
            if entrant.is_about_to_claim():
                entrant.claimed = entrant.at.args[0]  # type: ignore[union-attr]
            if world.carry_out(entrant):
                moving = list(world.entrants)
            else:
                moving.remove(entrant)
        _, *rivals = world.entrants
        assert sum(isinstance(entrant.at, Joined) for entrant in rivals) <= 1
        conflicts = {entrant.at.generation for entrant in rivals if isinstance(entrant.at, Conflicting)}
        assert len(conflicts) <= 1
        waiting = [entrant for entrant in world.entrants if isinstance(entrant.at, Asked)]
        assert not conflicts or all(entrant.claimed > max(conflicts) for entrant in waiting)
        ends.add(frozenset(type(entrant.at).__name__ for entrant in rivals))
    assert ends == {frozenset({"Conflicting"}), frozenset({"Joined", "Superseded"}), frozenset({"Joined", "Asked"})}
