"""What the machines of a round ask their shell to do. Those that change what runs say why, in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.decision import Arrival, Decision
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = [
    "Abort", "Action", "Announce", "Answer", "AskHolders", "CloseCompleted", "CountArrival", "CountCompletion",
    "Enter", "Finish", "GiveUp", "InternalError", "LateCompletion", "Leave", "Publish", "PutArrival",
    "ReadArrivals", "ReadEvent", "StoreAction", "WaitFor",
]  # fmt: skip


class Action:
    """What a machine asks its shell to do."""

    __slots__ = ()


@dataclass(frozen=True)
class InternalError(Action):
    """The machine was told what cannot be, or has gone where it must not; nothing else follows from it: report it."""

    reason: str


class StoreAction(Action):
    """One operation on the round's keys; its `Answer` goes to the machine."""

    __slots__ = ()


Answer = tuple[Any, ...] | None
"""The method of the machine that is told the outcome, and its arguments; None for nothing to tell."""


@dataclass(frozen=True)
class Announce(StoreAction):
    """Write the fault as the round's event, unless it has one; answer with `announced`."""

    fault: FaultRecord


@dataclass(frozen=True)
class CountCompletion(StoreAction):
    """Count this member's completion; answer with `completion_counted`."""


@dataclass(frozen=True)
class CloseCompleted(StoreAction):
    """Write completion as the round's event, unless it has one."""


@dataclass(frozen=True)
class ReadEvent(StoreAction):
    """Read the round's event, which is there; answer with `event`."""


@dataclass(frozen=True)
class AskHolders(Action):
    """Find out which members are in an atomic section; answer with `held_up`."""

    members: frozenset[InitialRank]


@dataclass(frozen=True)
class WaitFor(Action):
    """The round goes on waiting for these members: say so."""

    reason: str


@dataclass(frozen=True)
class LateCompletion(Action):
    """Not all members have completed in time: tell so, by `fault`."""

    reason: str


@dataclass(frozen=True)
class Abort(Action):
    """Abort what the function waits in, and interrupt it."""

    reason: str


@dataclass(frozen=True)
class Finish(Action):
    """All members completed the round: the call is over."""

    reason: str


@dataclass(frozen=True)
class PutArrival(StoreAction):
    """Write the arrival, over an earlier one of the same member."""

    arrival: Arrival


@dataclass(frozen=True)
class CountArrival(StoreAction):
    """Count the arrival; answer with `arrival_counted`."""


@dataclass(frozen=True)
class ReadArrivals(StoreAction):
    """Read every member's arrival and the event; answer with `arrivals_read`."""

    members: frozenset[InitialRank]


@dataclass(frozen=True)
class Publish(StoreAction):
    """Write the decision, unless the round has one."""

    decision: Decision


@dataclass(frozen=True)
class Enter(Action):
    """Enter the next round with these members."""

    members: frozenset[InitialRank]
    decision: Decision

    @property
    def reason(self) -> str:
        """Why the next round begins, and with how many members."""
        return f"{len(self.members)} ranks go on to iteration {self.decision.iteration + 1}: {self.decision.reason}"


@dataclass(frozen=True)
class Leave(Action):
    """This member is out of the job."""

    decision: Decision
    reason: str


@dataclass(frozen=True)
class GiveUp(Action):
    """The barrier did not close in time: leave, unless it has a decision after all."""

    reason: str
