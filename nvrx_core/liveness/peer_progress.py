"""The progress of the slowest members that have not stalled, computed from all leases. Pure.

A lease is `beats/stalled/monitor pid/stage/iteration/rendezvous/collectives/atomic/seconds in a rendezvous`, the
rendezvous and collectives being those begun. The summary holds only the minima, some members at the minimum, some
members in an atomic section, and whether all members wait in a rendezvous. Its size does not depend on the number of
members.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.values import value

__all__ = ["AllWaiting", "MinimumProgress", "PeerProgress"]

MAX_HOLDERS: Final = 16
"""How many members in an atomic section are listed."""
MAX_SLOWEST: Final = 4
"""How many of the slowest members are listed."""
WAITING_AFTER: Final = 2
"""Seconds in one rendezvous after which a member counts as waiting there."""
_UNFINISHED: Final = (Stage.STARTING, Stage.RUNNING, Stage.UNWINDING, Stage.ARRIVED)


class MinimumProgress(NamedTuple):
    """The minimum progress of the members in an iteration, and some of the slowest members.

    Attributes:
        rendezvous: the least number of rendezvous begun.
        collectives: the least number of collectives begun.
        slowest: some of the slowest members.
    """

    rendezvous: int
    collectives: int
    slowest: tuple[InitialRank, ...]


class AllWaiting(NamedTuple):
    """The fact that all members that have not completed an iteration wait inside a rendezvous.

    Attributes:
        iteration: the iteration.
        rendezvous: the least number of rendezvous begun.
        members: some of the members.
    """

    iteration: int
    rendezvous: int
    members: tuple[InitialRank, ...]


class _Lease(NamedTuple):
    beats: int
    stalled: int
    monitor: int
    stage: int
    iteration: int
    rendezvous: int
    collectives: int
    atomic: int
    inside: int


@value
class PeerProgress:
    """The summary of all leases.

    Attributes:
        minimum: by iteration, the minimum progress of its members that have not stalled.
        holders: (iteration, member, beats) of some members in an atomic section.
        all_waiting: None unless all members that have not completed wait in a rendezvous.
    """

    minimum: dict[int, MinimumProgress]
    holders: tuple[tuple[int, int, int], ...] = ()
    all_waiting: AllWaiting | None = None

    @classmethod
    def of(cls, leases: Mapping[InitialRank, str]) -> PeerProgress:
        """Summarize the leases of the members; malformed ones are ignored."""
        known = {member: lease for member, text in leases.items() if (lease := _parse(text)) is not None}
        holders = [(lease.iteration, member, lease.beats) for member, lease in known.items() if lease.atomic]
        unfinished = {member: lease for member, lease in known.items() if lease.stage in _UNFINISHED}
        found = dict[int, list[tuple[int, int, InitialRank]]]()
        for member, lease in unfinished.items():
            if not lease.stalled:
                found.setdefault(lease.iteration, []).append((lease.rendezvous, lease.collectives, member))
        minimum = {iteration: _minimum(members) for iteration, members in found.items()}
        return cls(minimum, tuple(holders[:MAX_HOLDERS]), _all_waiting(unfinished))

    def holding(self, iteration: int) -> dict[int, int]:
        """Return the members in an atomic section of this iteration, and the beats of their leases."""
        return {member: beats for k, member, beats in self.holders if k == iteration}

    def behind(self, iteration: int, rendezvous: int, collectives: int) -> tuple[InitialRank, ...]:
        """Return some of the members that a rank waits for; empty when it waits for none.

        Args:
            iteration: the rank's iteration.
            rendezvous: the rendezvous that the rank is inside of, 0 for none.
            collectives: how many collectives the rank has begun.
        """
        first = min(self.minimum, default=iteration)
        if first < iteration:
            return self.minimum[first].slowest
        here = self.minimum.get(iteration, MinimumProgress(rendezvous, collectives, ()))
        return here.slowest if here.rendezvous < rendezvous or here.collectives < collectives else ()

    def waiting(self, iteration: int, rendezvous: int) -> tuple[InitialRank, ...]:
        """Return some of the members that wait for a completed one; empty unless all unfinished members wait.

        Args:
            iteration: the iteration that the member has completed.
            rendezvous: how many rendezvous it has begun; a member inside a later one waits for members that have not
                begun it.
        """
        all_waiting = self.all_waiting
        if all_waiting and all_waiting.iteration == iteration and all_waiting.rendezvous > rendezvous:
            return all_waiting.members
        return ()

    def encode(self) -> str:
        """Return the summary as JSON."""
        minimum = [[iteration, *progress] for iteration, progress in self.minimum.items()]
        return json.dumps([minimum, self.holders, self.all_waiting])

    @classmethod
    def decode(cls, text: str | bytes) -> PeerProgress:
        """Return the summary that `encode` wrote.

        Raises:
            ValueError: when the text is malformed.
        """
        try:
            minimum, holders, waiting = json.loads(text)
            known = tuple((int(iteration), int(member), int(beats)) for iteration, member, beats in holders)
            parsed = {
                int(iteration): MinimumProgress(
                    int(rendezvous), int(collectives), tuple(map(InitialRank, map(int, slowest)))
                )
                for iteration, rendezvous, collectives, slowest in minimum
            }
            if waiting is not None:
                waiting = AllWaiting(int(waiting[0]), int(waiting[1]), tuple(map(InitialRank, map(int, waiting[2]))))
            return cls(parsed, known, waiting)
        except (IndexError, KeyError, OverflowError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not a survey: {text!r:.100}") from error


def _minimum(members: list[tuple[int, int, InitialRank]]) -> MinimumProgress:
    least = min((collectives, rendezvous) for rendezvous, collectives, _ in members)
    slowest = sorted(member for rendezvous, collectives, member in members if (collectives, rendezvous) == least)
    return MinimumProgress(min(rendezvous for rendezvous, _, _ in members), least[0], tuple(slowest[:MAX_SLOWEST]))


def _parse(text: str) -> _Lease | None:
    try:
        return _Lease(*map(int, text.split("/")))
    except (TypeError, ValueError):
        return None


def _all_waiting(unfinished: Mapping[InitialRank, _Lease]) -> AllWaiting | None:
    if not unfinished or any(lease.inside < WAITING_AFTER for lease in unfinished.values()):
        return None
    iteration = min(lease.iteration for lease in unfinished.values())
    rendezvous = min(lease.rendezvous for lease in unfinished.values())
    return AllWaiting(iteration, rendezvous, tuple(sorted(unfinished)[:MAX_SLOWEST]))
