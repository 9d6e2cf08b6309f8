"""Blame attribution for a hang, from the progress of each rank when the round's event reached it. Pure.

A rank waits for another rank when it is inside a rendezvous that the other has not begun, or when it has begun a
collective of the default group that the other has not begun. If some ranks wait, the ranks that do not wait are to
blame, whether they are stuck or run without reaching the rendezvous. A slow rank excuses the ranks that wait for it, so
no soft timeout is announced before the hard timeout has expired. If no rank waits for another, the stalled ranks are to
blame, and among them those with the lowest step. If this selects every rank, no rank is to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Self

__all__ = ["Progress", "behind"]


class Progress(NamedTuple):
    """The progress of a rank in an iteration.

    Attributes:
        meetings: the number of rendezvous begun: creations of process groups and stores, in which ranks wait for each
            other.
        inside: the number of rendezvous that the rank is inside of, 0 for none.
        collectives: the number of collectives of the default group begun.
        step: the step counter plus one, 0 when it is not used.
    """

    meetings: int = 0
    inside: int = 0
    collectives: int = 0
    step: int = 0

    @classmethod
    def of(cls, values: Sequence[int]) -> Self:
        """Return the progress that was sent as a list.

        Raises:
            ValueError: when the number of values is wrong.
        """
        if len(values) != len(cls._fields):
            raise ValueError(f"not a rank's progress: {values!r:.100}")
        return cls(*values)


def behind(progress: Mapping[int, Progress], stalled: Collection[int]) -> set[int]:
    """Return the ranks that block the others; empty when the progress of all ranks is alike.

    Args:
        progress: the progress of each rank that reported any, by initial rank.
        stalled: the ranks that showed no sign of life.
    """
    meetings = min((each.meetings for each in progress.values()), default=0)
    collectives = min((each.collectives for each in progress.values()), default=0)
    waiting = {
        rank
        for rank, each in progress.items()
        if each.collectives > collectives or (each.inside and each.meetings > meetings)
    }
    found = progress.keys() - waiting or set(progress)
    found = found & set(stalled) or found
    step = min((progress[rank].step for rank in found), default=0)
    found = {rank for rank in found if progress[rank].step == step}
    return found if len(found) < len(progress) else set()
