"""How the ranks that enter a call agree on a generation. Pure.

All keys of a call lie under a generation, so that a new start of a job does not read what an earlier one left in the
same store. Nobody is told the number, for the launchers of two nodes may count differently: a rank claims its place in
the first generation that is still open. A place that another incarnation of the rank has claimed belongs to an earlier
start, so the generation is closed as moved, and everybody who waits in it goes on to the next one. Who completes the
number of claims closes it as met. The first verdict on a generation stands, and all follow it.

Before a rank counts its claim, it compares its terms (world size, version, parameters that must agree) with those that
the first rank in the generation has left. Terms that differ may be those of an earlier start, so the generation is
closed as moved; terms that differ again and again are those of a living rank, and the job has a conflict. So it has
where no launcher starts a rank again, and a rank that lives finds its place claimed by another process. A rank that has
waited for too long closes its generation as expired: all that wait in it give up together, and know for whom.

`Join` asks for one operation at a time and is told its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nvrx_core.parsing import parse_object

__all__ = [
    "BY",
    "CONFLICT",
    "EXPIRED",
    "MET",
    "MOVED",
    "Agree",
    "Claim",
    "Close",
    "Conflicting",
    "Count",
    "Expired",
    "Join",
    "Joined",
    "Look",
    "ReadClaims",
    "Superseded",
    "Wait",
    "process_of",
]

MET: Final = "met"
MOVED: Final = "moved"
CONFLICT: Final = "conflict: "
"""Begins the verdict that ends the job; what differs follows."""
EXPIRED: Final = "expired: "
"""Begins the verdict that not all have come in time; who is missing follows."""
MAX_CONFLICTS: Final = 3
"""Generations in a row with other terms, after which they are not those of an earlier start."""
BY: Final = "by"
"""The field of the terms that says whose they are, and need not agree."""


@dataclass(frozen=True)
class Look:
    """Read the generation's verdict, if it has one."""

    generation: int


@dataclass(frozen=True)
class Claim:
    """Claim this rank's place, unless it is taken."""

    generation: int


@dataclass(frozen=True)
class Agree:
    """Leave this rank's terms for the others, unless there are some; read those that are there."""

    generation: int


@dataclass(frozen=True)
class Count:
    """Count the claim."""

    generation: int


@dataclass(frozen=True)
class ReadClaims:
    """See whether every place is taken: a claim may be counted twice, by a rank and for it when it is dead."""

    generation: int


@dataclass(frozen=True)
class Close:
    """Give the generation its verdict, unless it has one."""

    generation: int
    verdict: str


@dataclass(frozen=True)
class Wait:
    """Wait for the generation's verdict."""

    generation: int


@dataclass(frozen=True)
class Joined:
    """All have met."""

    generation: int


@dataclass(frozen=True)
class Superseded:
    """Another incarnation of this rank has come after this one."""

    generation: int
    by: str


@dataclass(frozen=True)
class Conflicting:
    """The ranks of the job contradict each other."""

    generation: int
    text: str


@dataclass(frozen=True)
class Expired:
    """Not all ranks of the job have come in time."""

    generation: int
    text: str


Step = Look | Claim | Agree | Conflicting | Expired | Count | ReadClaims | Close | Wait | Joined | Superseded


class Join:
    """One incarnation of a rank on its way to a generation.

    Args:
        world_size: how many ranks are to meet.
        incarnation: what tells this process from every other one; the value of its claim.
        claimed: the generation that it has claimed already, -1 for none.
        terms: what must agree between ranks, as JSON; "" for a rank that asks for no agreement.
        unique: nobody starts a rank again: another living process with this one's rank is a contradiction.
    """

    def __init__(
        self, world_size: int, incarnation: str, claimed: int = -1, terms: str = "", *, unique: bool = False
    ) -> None:
        self.world_size, self.incarnation, self.claimed, self.terms = world_size, incarnation, claimed, terms
        self.unique = unique
        self._conflicts = 0
        self._rival = ""
        self._ended, self._open, self._stride = -1, -1, 1

    def start(self) -> Step:
        """The first operation."""
        return Look(0) if self.claimed < 0 else Claim(self.claimed)

    def looked(self, generation: int, verdict: str | None) -> Step:
        """The generation has this verdict.

        Open ones follow those that have one: the first is looked for in growing strides, then between the last two.
        """
        if verdict is None:
            self._open = generation
        else:
            self._ended = generation
        if self.claimed >= 0 and (end := _end(generation, verdict or "")) is not None:
            return end  # of ranks that live: this one was on its way before it
        if self._open < 0:
            self._stride *= 2
            return Look(self._ended + self._stride // 2)
        if self._open - self._ended == 1:
            return Claim(self._open)
        return Look((self._open + self._ended) // 2)

    def claim_read(self, generation: int, value: str) -> Step:
        """This is whose the place is."""
        if value == self.incarnation:
            self.claimed = generation
            return Agree(generation) if self.terms else Count(generation)
        if self.claimed < 0:
            return Close(generation, MOVED)
        if not self.unique:
            return Superseded(generation, value)
        self._rival = value
        return Close(generation, f"{CONFLICT}{self.shared_with(value)}")

    def shared_with(self, rival: str) -> str:
        """What contradicts where another incarnation, which lives as well, has this rank."""
        by = parse_object(self.terms).get(BY)
        return f"{by} and another process ({process_of(rival)}) were started with the same RANK"

    def terms_read(self, generation: int, terms: str) -> Step:
        """These are the terms of the first rank in the generation.

        Raises:
            ValueError: when they are no JSON object.
        """
        differences = _differences(parse_object(self.terms), parse_object(terms))
        if not differences:
            return Count(generation)
        self._conflicts += 1
        return Close(generation, CONFLICT + differences if self._conflicts >= MAX_CONFLICTS else MOVED)

    def counted(self, generation: int, claims: int) -> Step:
        """So many claims were counted, with this one."""
        return ReadClaims(generation) if claims >= self.world_size else Wait(generation)

    def claims_read(self, generation: int, *, complete: bool) -> Step:
        """Whether every place is taken."""
        return Close(generation, MET) if complete else Wait(generation)

    def decided(self, generation: int, verdict: str) -> Step:
        """This is the generation's verdict."""
        end = _end(generation, verdict)
        if end is not None and (self.claimed == generation or self._rival):
            return end
        rival, self._rival = self._rival, ""
        if verdict == MET and rival:
            return Superseded(generation, rival)
        if verdict == MET and self.claimed == generation:
            return Joined(generation)
        self._ended, self._open, self._stride = generation, -1, 1
        return Look(generation + 1)


def _end(generation: int, verdict: str) -> Conflicting | Expired | None:
    """What the verdict says to those who wait in the generation, if it ends the job."""
    if verdict.startswith(CONFLICT):
        return Conflicting(generation, verdict.removeprefix(CONFLICT))
    return Expired(generation, verdict.removeprefix(EXPIRED)) if verdict.startswith(EXPIRED) else None


def process_of(incarnation: str) -> str:
    """The process that an incarnation is of, for people."""
    host, pid, *_ = (*incarnation.split("/"), "?")
    return f"{host} pid {pid}"


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    names = [name for name in sorted({*mine, *theirs} - {BY}) if mine.get(name) != theirs.get(name)]

    def told(terms: Mapping[str, Any]) -> str:
        return f"{terms.get(BY)} has {', '.join(f'{name}={terms.get(name)}' for name in names)}"

    return f"{told(mine)}; {told(theirs)}" if names else ""
