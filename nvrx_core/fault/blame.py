"""Blame attribution for a hang, from the progress of each rank when the round's event reached it. Pure.

A rank waits for another rank when it is inside a rendezvous that the other has not begun, or when it has begun a
collective of a group of both that the other has not begun. If some ranks wait, the ranks that do not wait are to blame,
whether they are stuck or run without reaching the rendezvous. A slow rank excuses the ranks that wait for it, so no
soft timeout is announced before the hard timeout has expired. If no rank waits for another, the stalled ranks are to
blame, and among them those with the lowest step. If this selects every rank, no rank is to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, Self

from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["MAX_AHEAD", "RankProgress", "behind"]

COUNTERS: Final = 4
MAX_AHEAD: Final = 64
"""Collectives that a rank may be ahead of others in a group. gloo counts messages, too, which differ by more."""


class RankProgress(NamedTuple):
    """The progress of a rank in an iteration.

    Attributes:
        rendezvous: the number of rendezvous begun: creations of process groups and stores, in which ranks wait for each
            other.
        inside: the number of rendezvous that the rank is inside of, 0 for none.
        collectives: the number of collectives of the default group begun.
        step: the step counter plus one, 0 when it is not used.
        groups: (key, collectives begun) of the other groups that the rank is a member of; a group has one key on all
            its ranks.
    """

    rendezvous: int = 0
    inside: int = 0
    collectives: int = 0
    step: int = 0
    groups: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, values: Sequence[int]) -> Self:
        """Return the progress from the list that `values` has returned.

        Raises:
            ValueError: when the number of values is wrong.
        """
        counters, groups = values[:COUNTERS], values[COUNTERS:]
        if len(counters) < COUNTERS or len(groups) % 2:
            raise ValueError(f"not a rank's progress: {values!r:.100}")
        rendezvous, inside, collectives, step = counters
        return cls(rendezvous, inside, collectives, step, tuple(zip(groups[::2], groups[1::2], strict=True)))

    def values(self) -> list[int]:
        """Return the progress as a flat list, to be sent."""
        return [self.rendezvous, self.inside, self.collectives, self.step, *chain.from_iterable(self.groups)]


def behind(progress: Mapping[InitialRank, RankProgress], stalled: Collection[InitialRank]) -> set[InitialRank]:
    """Return the ranks that block the others; empty when the progress of all ranks is alike.

    Args:
        progress: the progress of each rank that reported any, by initial rank.
        stalled: the ranks that showed no sign of life.
    """
    if not progress:
        return set()
    rendezvous = min(each.rendezvous for each in progress.values())
    collectives = min(each.collectives for each in progress.values())
    least = _least(progress.values())
    waiting = {
        rank
        for rank, each in progress.items()
        if each.collectives > collectives
        or (each.inside and each.rendezvous > rendezvous)
        or any(begun > least.get(group, begun) for group, begun in each.groups)
    }
    found = progress.keys() - waiting or set(progress)
    found = found & set(stalled) or found
    step = min(progress[rank].step for rank in found)
    found = {rank for rank in found if progress[rank].step == step}
    return found if len(found) < len(progress) else set()


def _least(progress: Iterable[RankProgress]) -> dict[int, int]:
    """Return the least number of collectives that a member has begun, for each group whose members count alike."""
    counts = dict[int, list[int]]()
    for group, begun in chain.from_iterable(each.groups for each in progress):
        counts.setdefault(group, []).append(begun)
    return {group: min(begun) for group, begun in counts.items() if max(begun) - min(begun) <= MAX_AHEAD}
