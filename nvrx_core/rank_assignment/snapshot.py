"""The input of a rank assignment that is equal on all ranks: the ended round and the keys of its ranks. Pure.

Each rank evaluates its keys before it arrives at the barrier. The round's decision carries them as columns, one per
key: runs of (count, key) over the living ranks in ascending order, so that equal neighbours take no space.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from itertools import chain, groupby, repeat

from nvrx_core.values import value

__all__ = ["Column", "RankKeys", "Snapshot", "columns_of", "spread"]

Column = tuple[tuple[int, str], ...]
"""One key of each living rank, in ascending order of ranks, as runs of (count, key)."""

RankKeys = tuple[str | None, ...]
"""One key of each rank, by rank; None for a rank without a living process."""


@value
class Snapshot:
    """The facts of a round, equal on every rank.

    Attributes:
        iteration: the round that ended; -1 is the barrier before the first iteration.
        keys: the columns of keys of each stage that declared keys.
    """

    iteration: int
    keys: Mapping[object, tuple[RankKeys, ...]] = field(default_factory=dict)

    def renumbered(self, places: Callable[[], Mapping[int, int]]) -> Snapshot:
        """Return the snapshot after a move.

        Args:
            places: returns the new ranks of the survivors, by old rank; called only if the snapshot has keys.
        """
        if not self.keys:
            return self
        order = sorted((new, old) for old, new in places().items())
        moved = {s: tuple(tuple(keys[old] for _, old in order) for keys in columns) for s, columns in self.keys.items()}
        return Snapshot(self.iteration, moved)


def columns_of(keys: Iterable[tuple[str, ...]]) -> tuple[Column, ...]:
    """Return the columns of the keys of the living ranks, in ascending order; empty if their numbers of keys differ."""
    rows = list(keys)
    if len({len(row) for row in rows}) != 1:
        return ()
    return tuple(tuple((len(list(run)), key) for key, run in groupby(column)) for column in zip(*rows, strict=True))


def spread(column: Column, world_size: int, vacant: Collection[int]) -> RankKeys:
    """Return the keys of a column by rank.

    Args:
        column: the keys of the living ranks.
        world_size: the number of ranks, living or not.
        vacant: the ranks without a living process.

    Raises:
        ValueError: when the number of keys is not that of the living ranks.
    """
    keys = list(chain.from_iterable(repeat(key, count) for count, key in column))
    if len(keys) != world_size - len(vacant):
        raise ValueError(f"{len(keys)} keys for {world_size} ranks, of which {len(vacant)} are vacant")
    if not vacant:
        return tuple(keys)
    remaining = iter(keys)
    return tuple(None if rank in vacant else next(remaining) for rank in range(world_size))
