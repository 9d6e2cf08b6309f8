"""Who holds the others up, from how far each rank had come when the round's event reached it. Pure.

A rank waits for another one when it is inside a rendezvous that the other has not begun, or has begun a collective of
the default group that the other has not begun. Who waits for nobody while others wait holds them up, whether it stands
still or runs on without getting anywhere: a rank that is merely slow excuses those that wait for it, so that no soft
timeout is announced before the hard timeout is over. Where nobody waits for anybody, those that showed no sign of life
are to blame, and of them those with the lowest step. When that is true of all ranks, none is to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Self

__all__ = ["Progress", "behind"]


class Progress(NamedTuple):
    """How far a rank has come in an iteration.

    Attributes:
        meetings: process groups and stores begun: calls in which ranks wait for each other.
        inside: how many of them it is inside of now, 0 for none.
        collectives: collectives of the default group begun.
        step: the step counter plus one, 0 when it is not used.
    """

    meetings: int = 0
    inside: int = 0
    collectives: int = 0
    step: int = 0

    @classmethod
    def of(cls, values: Sequence[int]) -> Self:
        """The progress that was told as a list.

        Raises:
            ValueError: when it has not as many values.
        """
        if len(values) != len(cls._fields):
            raise ValueError(f"not a rank's progress: {values!r:.100}")
        return cls(*values)


def behind(progress: Mapping[int, Progress], stalled: Collection[int]) -> set[int]:
    """The ranks that hold the others up; empty when no rank can be told from the others.

    Args:
        progress: by initial rank, of each rank that has any.
        stalled: those that showed no sign of life.
    """
    meetings = min((each.meetings for each in progress.values()), default=0)
    collectives = min((each.collectives for each in progress.values()), default=0)
    waits = {
        rank
        for rank, each in progress.items()
        if each.collectives > collectives or (each.inside and each.meetings > meetings)
    }
    found = progress.keys() - waits or set(progress)
    found = found & set(stalled) or found
    step = min((progress[rank].step for rank in found), default=0)
    found = {rank for rank in found if progress[rank].step == step}
    return found if len(found) < len(progress) else set()
