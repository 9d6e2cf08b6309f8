"""How far the slowest of the members have come that are on their way, from their leases; a pure value.

A lease is `beats/stalled/monitor pid/stage/iteration/meetings/collectives/atomic`. Only minima are kept, and some
members that are in an atomic section, so that the answer for any number of members is a few bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nvrx_core.progress.stage import Stage

__all__ = ["Slowest"]

NAMED: Final = 16
"""How many members in an atomic section are told of."""
_MOVING: Final = (Stage.STARTING, Stage.RUNNING, Stage.UNWINDING, Stage.ARRIVED)


@dataclass(frozen=True)
class Slowest:
    """What the leases of all say.

    Attributes:
        ways: by iteration, the least meetings and the least collectives of the members in it that are on their way.
        holders: (iteration, member, beats) of some members that are in an atomic section.
    """

    ways: dict[int, tuple[int, int]]
    holders: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def of(cls, leases: Mapping[int, str]) -> Slowest:
        """What these leases say, by member; one that is malformed says nothing."""
        ways, holders = dict[int, tuple[int, int]](), list[tuple[int, int, int]]()
        for member, lease in leases.items():
            try:
                beats, stalled, _, stage, iteration, meetings, collectives, atomic = map(int, lease.split("/"))
            except ValueError:
                continue
            if atomic:
                holders.append((iteration, member, beats))
            if stage in _MOVING and not stalled:
                least = ways.get(iteration, (meetings, collectives))
                ways[iteration] = min(least[0], meetings), min(least[1], collectives)
        return cls(ways, tuple(holders[:NAMED]))

    def holding(self, iteration: int) -> dict[int, int]:
        """The members that are in an atomic section of this iteration, and the beats of their leases."""
        return {member: beats for k, member, beats in self.holders if k == iteration}

    def behind(self, iteration: int, meeting: int, collectives: int) -> bool:
        """Whether one of them has yet to come to where a rank waits for it.

        Args:
            iteration: the rank's.
            meeting: the one that it is inside of, 0 for none.
            collectives: how many it has begun.
        """
        here = self.ways.get(iteration, (meeting, collectives))
        return min(self.ways, default=iteration) < iteration or here[0] < meeting or here[1] < collectives

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
            return cls({int(iteration): (int(m), int(c)) for iteration, m, c in ways}, known)
        except (OverflowError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not a survey: {text!r:.100}") from error
