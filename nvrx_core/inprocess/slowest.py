"""How far the slowest of the members have come that are on their way, from their leases; a pure value.

A lease is `beats/stalled/monitor pid/stage/iteration/meetings/collectives`. Only minima are kept, so that the answer
for any number of members is a few bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from nvrx_core.progress.stage import Stage

__all__ = ["Slowest"]

_MOVING: Final = (Stage.STARTING, Stage.RUNNING, Stage.UNWINDING, Stage.ARRIVED)


@dataclass(frozen=True)
class Slowest:
    """By iteration, the least meetings and the least collectives of the members in it that are on their way."""

    ways: dict[int, tuple[int, int]]

    @classmethod
    def of(cls, leases: Iterable[str]) -> Slowest:
        """What these leases say; one that is malformed says nothing."""
        ways = dict[int, tuple[int, int]]()
        for lease in leases:
            try:
                _, stalled, _, stage, iteration, meetings, collectives = map(int, lease.split("/"))
            except ValueError:
                continue
            if stage in _MOVING and not stalled:
                least = ways.get(iteration, (meetings, collectives))
                ways[iteration] = min(least[0], meetings), min(least[1], collectives)
        return cls(ways)

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
        return json.dumps([[iteration, *way] for iteration, way in self.ways.items()])

    @classmethod
    def decode(cls, text: str | bytes) -> Slowest:
        """The value that `encode` wrote.

        Raises:
            ValueError: when the text is none.
        """
        try:
            return cls({int(iteration): (int(m), int(c)) for iteration, m, c in json.loads(text)})
        except (OverflowError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not a survey: {text!r:.100}") from error
