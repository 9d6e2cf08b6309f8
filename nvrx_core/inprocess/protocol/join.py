"""How the ranks that enter a call agree on a generation. Pure.

All keys of a call lie under a generation, so that a new start of a job does not read the keys of an earlier one. The
number is not passed to the ranks, because the launchers of two nodes may count differently: a rank claims its place in
the first open generation. A place that another incarnation of the rank has claimed belongs to an earlier start, so the
generation is closed as moved, and all ranks that wait in it continue with the next one. The rank that completes the
number of claims closes it as met. The first verdict on a generation is final, and all ranks follow it.

Before a rank counts its claim, it compares its terms (world size, version, parameters that must agree) with those that
the first rank in the generation has written. Terms that differ may be those of an earlier start, so the generation is
closed as moved; terms that differ repeatedly are those of a living rank, which is a conflict. It is also a conflict if
no launcher restarts ranks and a living rank finds its place claimed by another process. A rank that has waited too long
closes its generation as expired: all ranks that wait in it give up together, and know the missing ranks.

`Join` requests one operation at a time and gets its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nvrx_core.parsing import parse_object
from nvrx_core.values import value

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


@value
class Look:
    """Read the generation's verdict, if it has one."""

    generation: int


@value
class Claim:
    """Claim this rank's place, unless it is taken."""

    generation: int


@value
class Agree:
    """Write this rank's terms, unless there are some; read the present ones."""

    generation: int


@value
class Count:
    """Count the claim."""

    generation: int


@value
class ReadClaims:
    """Check whether every place is taken: a claim may be counted twice, by a rank and on its behalf."""

    generation: int


@value
class Close:
    """Write the verdict on the generation, unless it has one."""

    generation: int
    verdict: str


@value
class Wait:
    """Wait for the generation's verdict."""

    generation: int


@value
class Joined:
    """All ranks have joined."""

    generation: int


@value
class Superseded:
    """A later incarnation of this rank has joined."""

    generation: int
    by: str


@value
class Conflicting:
    """The ranks of the job contradict each other."""

    generation: int
    text: str


@value
class Expired:
    """Not all ranks of the job have joined in time."""

    generation: int
    text: str


Step = Look | Claim | Agree | Conflicting | Expired | Count | ReadClaims | Close | Wait | Joined | Superseded


class Join:
    """One incarnation of a rank that joins a generation.

    Args:
        world_size: the number of ranks that must join.
        incarnation: identifies this process; the value of its claim.
        claimed: the generation that it has claimed already, -1 for none.
        terms: the terms that must be equal on all ranks, as JSON; "" for a rank that compares nothing.
        unique: ranks are not restarted: another living process with this one's rank is a conflict.
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
        """Return the first operation."""
        return Look(0) if self.claimed < 0 else Claim(self.claimed)

    def looked(self, generation: int, verdict: str | None) -> Step:
        """Handle the generation's verdict.

        Open generations follow those with a verdict: the first open one is searched for in growing strides, then by
        bisection.
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
        """Handle the present claim of the place."""
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
        """Return the conflict with another living incarnation of this rank."""
        by = parse_object(self.terms).get(BY)
        return f"{by} and another process ({process_of(rival)}) were started with the same RANK"

    def terms_read(self, generation: int, terms: str) -> Step:
        """Handle the terms of the first rank in the generation.

        Raises:
            ValueError: when they are not a JSON object.
        """
        differences = _differences(parse_object(self.terms), parse_object(terms))
        if not differences:
            return Count(generation)
        self._conflicts += 1
        return Close(generation, CONFLICT + differences if self._conflicts >= MAX_CONFLICTS else MOVED)

    def counted(self, generation: int, claims: int) -> Step:
        """Handle the number of counted claims, including this one."""
        return ReadClaims(generation) if claims >= self.world_size else Wait(generation)

    def claims_read(self, generation: int, *, complete: bool) -> Step:
        """Handle whether every place is taken."""
        return Close(generation, MET) if complete else Wait(generation)

    def decided(self, generation: int, verdict: str) -> Step:
        """Handle the final verdict on the generation."""
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
    """Return the end of the job for the ranks that wait in the generation, if the verdict is one."""
    if verdict.startswith(CONFLICT):
        return Conflicting(generation, verdict.removeprefix(CONFLICT))
    return Expired(generation, verdict.removeprefix(EXPIRED)) if verdict.startswith(EXPIRED) else None


def process_of(incarnation: str) -> str:
    """Return the process of an incarnation, for people."""
    host, pid, *_ = (*incarnation.split("/"), "?")
    return f"{host} pid {pid}"


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    names = [name for name in sorted({*mine, *theirs} - {BY}) if mine.get(name) != theirs.get(name)]

    def told(terms: Mapping[str, Any]) -> str:
        return f"{terms.get(BY)} has {', '.join(f'{name}={terms.get(name)}' for name in names)}"

    return f"{told(mine)}; {told(theirs)}" if names else ""
