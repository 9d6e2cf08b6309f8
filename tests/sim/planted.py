"""Mistakes that are easy to make in a round's protocol; each must be found.

A mistake replaces one method of the shipped machines, or one rule of the store, for as long as its context lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nvrx_core.inprocess import round as rounds
from nvrx_core.inprocess.decision import Arrival, Standing, decide
from nvrx_core.inprocess.interruption import InterruptionMachine
from nvrx_core.inprocess.round import (
    Announce,
    CloseCompleted,
    CountArrival,
    CountCompletion,
    Enter,
    Leave,
    Obituary,
    Phase,
    Publish,
    PutArrival,
    ReadArrivals,
    Round,
)

from .rank import Rank
from .record import Record, Rules

__all__ = ["PLANTED", "planted"]


def abort_ignores_atomic(self: Any, seen: Any, *, now: float) -> Any:
    return TICK(self, seen.__class__(seen.out, False, seen.raised, seen.alive), now=now)


def closes_one_early(self: Any, count: int, *, now: float) -> Any:
    return (ReadArrivals(self.members),) if count >= len(self.members) - 1 else ()


def decides_without_the_missing(self: Any, arrivals: Any, event: Any, *, now: float) -> Any:
    return (Publish(decide(self.iteration, arrivals, event)),) if arrivals else ()


def reads_what_is_there(record: Record, action: Any) -> Any:
    if isinstance(action, ReadArrivals):
        return record, ("arrivals_read", dict(record.arrivals), record.event[0] if record.event else None)
    return PERFORM(record, action)


def no_arrival_for_the_dead(self: Any, *, now: float) -> Any:
    return (Announce(self.fault),)


def death_is_not_told(self: Any, *, now: float) -> Any:
    return DIED(self, now=now)[1:]


def death_is_told_to_one_round_only(self: Any, decision: Any, *, now: float) -> Any:
    return (Leave(decision, "told once"),)


def counts_before_it_writes(self: Any, arrival: Any, *, now: float) -> Any:
    return tuple(reversed(ARRIVE(self, arrival, now=now)))


def reads_at_the_exact_count_only(self: Any, count: int, *, now: float) -> Any:
    return (ReadArrivals(self.members),) if count == len(self.members) else ()


def a_second_decision_counts(record: Record, decision: Any) -> Record:
    return record._replace(decision=decision)


def completion_and_fault_both_count(record: Record, event: Any) -> Record:
    return record._replace(event=(event,))


def the_discarded_return(self: Any, decision: Any, *, now: float) -> Any:
    if self.phase is not Phase.ARRIVED:
        return ()
    self.phase = Phase.DECIDED
    return (Enter(self.members - (set(decision.lost) - {self.member}), decision),)


def one_completes_for_all(self: Any, *, now: float) -> Any:
    actions = COMPLETED(self, now=now)
    return (CloseCompleted(),) if actions else ()


def leaves_without_arrival(self: Any, arrival: Any, *, now: float) -> Any:
    if self.phase is not Phase.OPEN:  # as when the event was faster
        return ()
    self.phase = Phase.ARRIVED
    return (PutArrival(arrival), CountArrival(), CountCompletion())


def leaves_without_completion(self: Any, arrival: Any, *, now: float) -> Any:
    return LEAVE(self, arrival, now=now)[:2]


def the_dead_keep_their_place(self: Any, *, now: float) -> Any:
    announce, _, count = DIED(self, now=now)
    alive = Arrival(initial_rank=self.member, rank=self.fault.rank, standing=Standing.ALIVE)
    return announce, PutArrival(alive), count


def tells_before_it_is_interrupted_only(self: Any, fault: Any, *, now: float) -> Any:
    return () if self.phase is not Phase.COMPLETE else (Announce(fault),)


TICK, DIED, ARRIVE, LEAVE, COMPLETED = (
    InterruptionMachine.tick, Obituary.died, Round.arrive, Round.leave, Round.completed,
)  # fmt: skip
PERFORM = Rules.perform
BARRIER = rounds._Barrier
Place = tuple[type, str, Callable[..., Any]]

PLANTED: dict[str, tuple[Place, ...]] = {
    "abort ignores atomic": (
        (InterruptionMachine, "tick", abort_ignores_atomic),
        (Rank, "masked", lambda self: False),
    ),
    "the barrier closes one early": (
        (BARRIER, "arrival_counted", closes_one_early),
        (BARRIER, "arrivals_read", decides_without_the_missing),
        (Rules, "perform", staticmethod(reads_what_is_there)),
    ),
    "no arrival for the dead": ((Obituary, "died", no_arrival_for_the_dead),),
    "a death is not told": ((Obituary, "died", death_is_not_told),),
    "a death is told to one round only": ((Obituary, "decided", death_is_told_to_one_round_only),),
    "an arrival is counted before it is written": ((Round, "arrive", counts_before_it_writes),),
    "only the exact count closes": ((BARRIER, "arrival_counted", reads_at_the_exact_count_only),),
    "a record after the decision counts": ((Rules, "write_decision", staticmethod(a_second_decision_counts)),),
    "completion and fault both count": ((Rules, "write_event", staticmethod(completion_and_fault_both_count)),),
    "the discarded return": ((Round, "decided", the_discarded_return),),
    "one completes for all": ((Round, "completed", one_completes_for_all),),
    "who leaves early after the event does not arrive": ((Round, "leave", leaves_without_arrival),),
    "who leaves early is waited for in the completion": ((Round, "leave", leaves_without_completion),),
    "the dead keep their place": ((Obituary, "died", the_dead_keep_their_place),),
    "a fault is kept to oneself": ((Round, "fault", tells_before_it_is_interrupted_only),),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The mistake, while the context lasts."""
    before = [(owner, method, vars(owner)[method]) for owner, method, _ in PLANTED[name]]
    try:
        for owner, method, mistake in PLANTED[name]:
            setattr(owner, method, mistake)
        yield
    finally:
        for owner, method, original in before:
            setattr(owner, method, original)
