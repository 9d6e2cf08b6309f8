"""How far the slowest of the members have come that are on their way, from their leases; a pure value.

A lease is `beats/stalled/monitor pid/stage/iteration/meetings/collectives/atomic/seconds in a meeting`. Only minima are
kept, some of those that have them, some members that are in an atomic section, and whether all stand in a meeting, so
that the answer for any number of members is a few bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from nvrx_core.progress.stage import Stage

__all__ = ["Halt", "PeerProgress", "Way"]

NAMED: Final = 16
"""How many members in an atomic section are told of."""
LAST: Final = 4
"""How many of those that are furthest back."""
WAITS: Final = 2
"""Seconds in one meeting after which a member counts as waiting there."""
_MOVING: Final = (Stage.STARTING, Stage.RUNNING, Stage.UNWINDING, Stage.ARRIVED)


class Way(NamedTuple):
    """The least meetings and the least collectives of the members in an iteration, and some that are the last."""

    meetings: int
    collectives: int
    last: tuple[int, ...]


class Halt(NamedTuple):
    """All who have not completed this iteration wait inside a meeting: the least of these, and some of the members."""

    iteration: int
    meetings: int
    members: tuple[int, ...]


class _Lease(NamedTuple):
    beats: int
    stalled: int
    monitor: int
    stage: int
    iteration: int
    meetings: int
    collectives: int
    atomic: int
    inside: int


@dataclass(frozen=True)
class PeerProgress:
    """What the leases of all say.

    Attributes:
        ways: by iteration, that of the members in it that are on their way.
        holders: (iteration, member, beats) of some members that are in an atomic section.
        halt: None while a member is on its way, or nobody waits.
    """

    ways: dict[int, Way]
    holders: tuple[tuple[int, int, int], ...] = ()
    halt: Halt | None = None

    @classmethod
    def of(cls, leases: Mapping[int, str]) -> PeerProgress:
        """What these leases say, by member; one that is malformed says nothing."""
        told = {member: lease for member, text in leases.items() if (lease := _read(text)) is not None}
        holders = [(lease.iteration, member, lease.beats) for member, lease in told.items() if lease.atomic]
        unfinished = {member: lease for member, lease in told.items() if lease.stage in _MOVING}
        found = dict[int, list[tuple[int, int, int]]]()
        for member, lease in unfinished.items():
            if not lease.stalled:
                found.setdefault(lease.iteration, []).append((lease.meetings, lease.collectives, member))
        ways = {iteration: _way(those) for iteration, those in found.items()}
        return cls(ways, tuple(holders[:NAMED]), _halt(unfinished))

    def holding(self, iteration: int) -> dict[int, int]:
        """The members that are in an atomic section of this iteration, and the beats of their leases."""
        return {member: beats for k, member, beats in self.holders if k == iteration}

    def behind(self, iteration: int, meeting: int, collectives: int) -> tuple[int, ...]:
        """Some of those that have yet to come to where a rank waits for them; empty when there is none.

        Args:
            iteration: the rank's.
            meeting: the one that it is inside of, 0 for none.
            collectives: how many it has begun.
        """
        first = min(self.ways, default=iteration)
        if first < iteration:
            return self.ways[first].last
        here = self.ways.get(iteration, Way(meeting, collectives, ()))
        return here.last if here.meetings < meeting or here.collectives < collectives else ()

    def waiting(self, iteration: int, meetings: int) -> tuple[int, ...]:
        """Some of those that wait for a member that has completed; empty unless all who have not completed wait.

        Args:
            iteration: the one that the member has completed.
            meetings: how many it has begun; who waits in a later one can only wait for those that have not begun it.
        """
        halt = self.halt
        return halt.members if halt and halt.iteration == iteration and halt.meetings > meetings else ()

    def encode(self) -> str:
        """The value as JSON."""
        return json.dumps([[[iteration, *way] for iteration, way in self.ways.items()], self.holders, self.halt])

    @classmethod
    def decode(cls, text: str | bytes) -> PeerProgress:
        """The value that `encode` wrote.

        Raises:
            ValueError: when the text is none.
        """
        try:
            ways, holders, halt = json.loads(text)
            known = tuple((int(iteration), int(member), int(beats)) for iteration, member, beats in holders)
            told = [(int(k), Way(int(m), int(c), tuple(map(int, last)))) for k, m, c, last in ways]
            if halt is not None:
                halt = Halt(int(halt[0]), int(halt[1]), tuple(map(int, halt[2])))
            return cls(dict(told), known, halt)
        except (IndexError, KeyError, OverflowError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not a survey: {text!r:.100}") from error


def _way(those: list[tuple[int, int, int]]) -> Way:
    least = min((collectives, meetings) for meetings, collectives, _ in those)
    last = sorted(member for meetings, collectives, member in those if (collectives, meetings) == least)
    return Way(min(meetings for meetings, _, _ in those), least[0], tuple(last[:LAST]))


def _read(text: str) -> _Lease | None:
    try:
        return _Lease(*map(int, text.split("/")))
    except (TypeError, ValueError):
        return None


def _halt(unfinished: Mapping[int, _Lease]) -> Halt | None:
    if not unfinished or any(lease.inside < WAITS for lease in unfinished.values()):
        return None
    iteration = min(lease.iteration for lease in unfinished.values())
    meetings = min(lease.meetings for lease in unfinished.values())
    return Halt(iteration, meetings, tuple(sorted(unfinished)[:LAST]))
