"""How far the slowest of the members have come that are on their way, from their leases; a pure value.

A lease is `beats/stalled/monitor pid/stage/iteration/meetings/collectives/atomic`. Only minima are kept, some of those
that have them, and some members that are in an atomic section, so that the answer for any number of members is a few
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from nvrx_core.progress.stage import Stage

__all__ = ["Slowest", "Way"]

NAMED: Final = 16
"""How many members in an atomic section are told of."""
LAST: Final = 4
"""How many of those that are furthest back."""
_MOVING: Final = (Stage.STARTING, Stage.RUNNING, Stage.UNWINDING, Stage.ARRIVED)


class Way(NamedTuple):
    """The least meetings and the least collectives of the members in an iteration, and some that are the last."""

    meetings: int
    collectives: int
    last: tuple[int, ...]


@dataclass(frozen=True)
class Slowest:
    """What the leases of all say.

    Attributes:
        ways: by iteration, that of the members in it that are on their way.
        holders: (iteration, member, beats) of some members that are in an atomic section.
    """

    ways: dict[int, Way]
    holders: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def of(cls, leases: Mapping[int, str]) -> Slowest:
        """What these leases say, by member; one that is malformed says nothing."""
        found, holders = dict[int, list[tuple[int, int, int]]](), list[tuple[int, int, int]]()
        for member, lease in leases.items():
            try:
                beats, stalled, _, stage, iteration, meetings, collectives, atomic = map(int, lease.split("/"))
            except ValueError:
                continue
            if atomic:
                holders.append((iteration, member, beats))
            if stage in _MOVING and not stalled:
                found.setdefault(iteration, []).append((meetings, collectives, member))
        return cls({iteration: _way(those) for iteration, those in found.items()}, tuple(holders[:NAMED]))

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

    def encode(self) -> str:
        """The value as JSON."""
        return json.dumps([[[iteration, *way] for iteration, way in self.ways.items()], self.holders])

    @classmethod
    def decode(cls, text: str | bytes) -> Slowest:
        """The value that `encode` wrote.

        Raises:
            ValueError: when the text is none.
        """
        try:
            ways, holders = json.loads(text)
            known = tuple((int(iteration), int(member), int(beats)) for iteration, member, beats in holders)
            told = [(int(k), Way(int(m), int(c), tuple(map(int, last)))) for k, m, c, last in ways]
            return cls(dict(told), known)
        except (OverflowError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not a survey: {text!r:.100}") from error


def _way(those: list[tuple[int, int, int]]) -> Way:
    least = min((collectives, meetings) for meetings, collectives, _ in those)
    last = sorted(member for meetings, collectives, member in those if (collectives, meetings) == least)
    return Way(min(meetings for meetings, _, _ in those), least[0], tuple(last[:LAST]))
