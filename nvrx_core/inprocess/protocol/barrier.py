"""The part of a round that closes it, executed by a living member, and by the monitor process of a dead one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.actions import Action, Enter, InternalError, Publish, ReadArrivals
from nvrx_core.inprocess.protocol.decision import Arrival, Decision, decide
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["Barrier"]


@lru_cache(maxsize=2)
def _without(members: frozenset[InitialRank], lost: tuple[InitialRank, ...]) -> frozenset[InitialRank]:
    """Return the remaining members; cached, so that thousands of simulated members share one set."""
    return members.difference(lost)


class Barrier(ABC):
    """The end of a round.

    Its answers from the store may arrive in any phase: counting and reading change no phase.

    Args:
        iteration: the round's number.
        member: the initial rank that arrives.
        members: the initial ranks that take part.
    """

    def __init__(self, iteration: int, member: InitialRank, members: frozenset[InitialRank]) -> None:
        self.iteration = iteration
        self.member = member
        self.members = members

    @abstractmethod
    def announced(self, cause: FaultRecord | None, *, now: float) -> tuple[Action, ...]:
        """Handle the event after an announcement; None: the round is completed."""

    def completion_counted(self, count: int, *, now: float) -> tuple[Action, ...]:
        """Handle that `count` members have completed; a dead member completes nothing."""
        return (InternalError(f"{count} completions are counted for a member that completes nothing"),)

    def event(self, cause: FaultRecord | None, *, now: float) -> tuple[Action, ...]:
        """Handle the round's event, as it was read; None: the round is completed. For a dead member nobody reads it."""
        return (InternalError("an event is read for a member that is told it otherwise"),)

    def arrival_counted(self, count: int, *, now: float) -> tuple[Action, ...]:
        """Handle that this arrival was counted, as the `count`-th, repetitions included."""
        return (ReadArrivals(self.members),) if count >= len(self.members) else ()

    def arrivals_read(
        self, arrivals: Mapping[InitialRank, Arrival], event: FaultRecord | None, *, now: float
    ) -> tuple[Action, ...]:
        """Handle the arrivals, none if one is missing, and the round's event."""
        if not self.members <= arrivals.keys():
            return ()
        return (Publish(decide(self.iteration, {m: arrivals[m] for m in self.members}, event)),)

    def _enter(self, decision: Decision) -> Enter:
        return Enter(_without(self.members, decision.lost), decision)
