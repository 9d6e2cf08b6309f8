"""What all ranks know alike when they assign themselves their places: the round that ended, and the keys of its ranks.

Each rank evaluates its keys before it arrives at the barrier. The round's decision carries them as columns, one for
each key: runs of (count, key) over the living ranks in ascending order, so that equal neighbours cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby, repeat

__all__ = ["Column", "RankKeys", "Snapshot", "columns_of", "spread"]

Column = tuple[tuple[int, str], ...]
"""One key of each living rank, in ascending order of ranks, as runs of (count, key)."""

RankKeys = tuple[str | None, ...]
"""One key of each rank, by rank; None where nobody has the rank."""


@dataclass(frozen=True)
class Snapshot:
    """The facts of a round, the same on every rank.

    Attributes:
        iteration: the round that ended; -1 is the barrier before the first iteration.
        keys: for each stage that declared keys, the columns of them.
    """

    iteration: int
    keys: Mapping[object, tuple[RankKeys, ...]] = field(default_factory=dict)

    def renumbered(self, places: Callable[[], Mapping[int, int]]) -> Snapshot:
        """The snapshot after a move.

        Args:
            places: answers with the new ranks of the survivors, by old rank; asked only when there are keys.
        """
        if not self.keys:
            return self
        order = sorted((new, old) for old, new in places().items())
        moved = {s: tuple(tuple(keys[old] for _, old in order) for keys in columns) for s, columns in self.keys.items()}
        return Snapshot(self.iteration, moved)


def columns_of(keys: Iterable[tuple[str, ...]]) -> tuple[Column, ...]:
    """The columns of what the living ranks declared, in ascending order; none when they do not declare equally many."""
    rows = list(keys)
    if len({len(row) for row in rows}) != 1:
        return ()
    return tuple(tuple((len(list(run)), key) for key, run in groupby(column)) for column in zip(*rows, strict=True))


def spread(column: Column, world_size: int, vacant: Collection[int]) -> RankKeys:
    """The keys of a column by rank.

    Args:
        column: the keys of the living ranks.
        world_size: how many ranks there are, living or not.
        vacant: the ranks that nobody has.

    Raises:
        ValueError: when the column is not about as many ranks as are left.
    """
    keys = list(chain.from_iterable(repeat(key, count) for count, key in column))
    if len(keys) != world_size - len(vacant):
        raise ValueError(f"{len(keys)} keys for {world_size} ranks, of which {len(vacant)} are vacant")
    if not vacant:
        return tuple(keys)
    left = iter(keys)
    return tuple(None if rank in vacant else next(left) for rank in range(world_size))
