"""The actions of a round's machines, for their shell. Those that change what runs have a reason, in a sentence."""

from __future__ import annotations

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.decision import Arrival, Decision
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.values import value

__all__ = [
    "Action",
    "Announce",
    "AskHolders",
    "CloseCompleted",
    "CountArrival",
    "CountCompletion",
    "EndFunction",
    "Enter",
    "Finish",
    "GiveUp",
    "InternalError",
    "LateCompletion",
    "Leave",
    "Publish",
    "PutArrival",
    "ReadArrivals",
    "ReadEvent",
    "StoreAction",
    "WaitFor",
]  # fmt: skip


class Action:
    """An action that a machine requests of its shell."""

    __slots__ = ()


@value
class InternalError(Action):
    """The machine got an impossible input, or is in an invalid state; it has no other effect and must be reported."""

    reason: str


class StoreAction(Action):
    """One operation on the round's keys; its answer goes to the machine."""

    __slots__ = ()


@value
class Announce(StoreAction):
    """Write the fault as the round's event, unless it has one; answer with `announced`."""

    fault: FaultRecord


@value
class CountCompletion(StoreAction):
    """Count this member's completion; answer with `completion_counted`."""


@value
class CloseCompleted(StoreAction):
    """Write completion as the round's event, unless it has one."""


@value
class ReadEvent(StoreAction):
    """Read the round's event, which is there; answer with `event`."""


@value
class AskHolders(Action):
    """Query which members are in an atomic section; answer with `held_up`."""

    members: frozenset[InitialRank]


@value
class WaitFor(Action):
    """Log that the round continues to wait for these members."""

    reason: str


@value
class LateCompletion(Action):
    """Announce by `fault` that not all members have completed in time."""

    reason: str


@value
class EndFunction(Action):
    """EndFunction the calls in which the function blocks, and interrupt it."""

    reason: str


@value
class Finish(Action):
    """All members have completed the round: end the call."""

    reason: str


@value
class PutArrival(StoreAction):
    """Write the arrival, over an earlier one of the same member."""

    arrival: Arrival


@value
class CountArrival(StoreAction):
    """Count the arrival; answer with `arrival_counted`."""


@value
class ReadArrivals(StoreAction):
    """Read every member's arrival and the event; answer with `arrivals_read`."""

    members: frozenset[InitialRank]


@value
class Publish(StoreAction):
    """Write the decision, unless the round has one."""

    decision: Decision


@value
class Enter(Action):
    """Enter the next round with these members."""

    members: frozenset[InitialRank]
    decision: Decision

    @property
    def reason(self) -> str:
        """The reason for the next round, and its number of members."""
        return f"{len(self.members)} ranks go on to iteration {self.decision.iteration + 1}: {self.decision.reason}"


@value
class Leave(Action):
    """Leave the job: this member no longer takes part."""

    decision: Decision
    reason: str


@value
class GiveUp(Action):
    """Leave the job, unless the round has a decision after all: the barrier did not close in time."""

    reason: str
