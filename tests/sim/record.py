"""What the store knows of one round, and what each action of a machine does to it: one atomic operation.

The same rules as `nvrx_core.inprocess.board`, on a value instead of a server. The answer names the method of the
machine that is told the outcome, so that a simulation can deliver it later, or never.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, NamedTuple

from nvrx_core.inprocess.decision import Arrival, Decision
from nvrx_core.inprocess.fault import Fault
from nvrx_core.inprocess.round import (
    Action,
    Announce,
    CloseCompleted,
    CountArrival,
    CountCompletion,
    Obituary,
    Publish,
    PutArrival,
    ReadArrivals,
    Round,
)

__all__ = ["Answer", "Record", "Rules", "feed"]

Answer = tuple[Any, ...] | None
"""The method of the machine to call, and what to tell it."""


class Record(NamedTuple):
    """The keys of one round.

    Attributes:
        event: (None,) for completion, (fault,) for a fault, () while there is none.
        arrivals: by member.
        arrived: how many arrivals were counted.
        completed: how many completions were counted.
        decision: the round's decision.
    """

    event: tuple[Fault | None, ...] = ()
    arrivals: tuple[tuple[int, Arrival], ...] = ()
    arrived: int = 0
    completed: int = 0
    decision: Decision | None = None


class Rules:
    """How the store carries out an action; a planted bug replaces one of these."""

    @staticmethod
    def write_event(record: Record, event: Fault | None) -> Record:
        return record if record.event else record._replace(event=(event,))

    @staticmethod
    def write_decision(record: Record, decision: Decision) -> Record:
        return record if record.decision else record._replace(decision=decision)

    @classmethod
    def perform(cls, record: Record, action: Action) -> tuple[Record, Answer] | None:
        """The record after the action, and the answer; None when the action is not the store's."""
        answer: Answer = None
        match action:
            case Announce(fault):
                record = cls.write_event(record, fault)
                answer = "event", record.event[0]
            case CountCompletion():
                record = record._replace(completed=record.completed + 1)
                answer = "completion_counted", record.completed
            case CloseCompleted():
                record = cls.write_event(record, None)
            case PutArrival(arrival):
                arrivals = {**dict(record.arrivals), arrival.initial_rank: arrival}
                record = record._replace(arrivals=tuple(sorted(arrivals.items(), key=itemgetter(0))))
            case CountArrival():
                record = record._replace(arrived=record.arrived + 1)
                answer = "arrival_counted", record.arrived
            case ReadArrivals(members):
                found = {member: arrival for member, arrival in record.arrivals if member in members}
                told = record.event[0] if record.event else None
                answer = "arrivals_read", found if len(found) == len(members) else {}, told
            case Publish(decision):
                record = cls.write_decision(record, decision)
            case _:
                return None
        return record, answer


def feed(machine: Round | Obituary, answer: Answer, now: float) -> tuple[Action, ...]:
    """Tell the machine; a living member learns of its announcement's outcome through its monitor thread only."""
    if answer is None or (answer[0] == "event" and isinstance(machine, Round)):
        return ()
    method, *told = answer
    actions: tuple[Action, ...] = getattr(machine, method)(*told, now=now)
    return actions
