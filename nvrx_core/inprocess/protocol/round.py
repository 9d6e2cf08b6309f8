"""One restart round of a member, as a pure machine: arrivals, deaths, the end of the barrier, the decision.

A round is one iteration of the wrapped function and the barrier that ends it. Its members are named by their initial
ranks. They share a store with five kinds of keys (`nvrx_core.store.keys`), and every method returns the next store
operations, in order, which `run_store_actions` executes. `Rounds` are the rounds of a call, which the two threads of a
rank share.

Invariants, for every interleaving and every crash between two operations:
 1. `event` is written once: a round is completed, or it restarts, never both.
 2. An arrival is written before it is counted, and a member whose count reaches the number of members reads all
    arrivals: however often a member is counted twice (by itself and by its monitor process), the last count finds the
    barrier complete. So the barrier closes, and not before all have arrived.
 3. `decision` is written once; all members act on the same bytes.
 4. A death belongs to the job, not to a round: the dead member's monitor process arrives for it in this round and,
    while a decision still counts it as living, in the next one too.
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final, Protocol

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, RoundDecision, decide
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.values import value

__all__ = [
    "Announce",
    "AskHolders",
    "Barrier",
    "CloseCompleted",
    "CountArrival",
    "CountCompletion",
    "EndFunction",
    "Endpoint",
    "Enter",
    "Finish",
    "GiveUp",
    "LateCompletion",
    "Publish",
    "PutArrival",
    "ReadArrivals",
    "ReadEvent",
    "Round",
    "RoundAction",
    "RoundPhase",
    "RoundStore",
    "RoundTimeouts",
    "RoundView",
    "Rounds",
    "StoreAction",
    "run_store_actions",
]


class RoundAction:
    """An action that a machine requests of its shell."""

    __slots__ = ()


class StoreAction(RoundAction):
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
    """Read the round's event, which is there; answer with `event_read`."""


@value
class AskHolders(RoundAction):
    """Query which members are in an atomic section; answer with `held_up`."""

    members: frozenset[InitialRank]


@value
class LateCompletion(RoundAction):
    """Announce by `fault` that not all members have completed in time."""

    reason: str


@value
class EndFunction(RoundAction):
    """End the calls in which the function blocks, and interrupt it."""

    reason: str


@value
class Finish(RoundAction):
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

    decision: RoundDecision


@value
class Enter(RoundAction):
    """Enter the next round with these members."""

    members: frozenset[InitialRank]
    decision: RoundDecision

    @property
    def reason(self) -> str:
        """The reason for the next round, and its number of members."""
        return f"{len(self.members)} ranks go on to iteration {self.decision.iteration + 1}: {self.decision.reason}"


@value
class GiveUp(RoundAction):
    """Leave the job, unless the round has a decision after all: the barrier did not close in time."""

    reason: str


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
    def announced(self, cause: FaultRecord | None) -> tuple[RoundAction, ...]:
        """Handle the event after an announcement; None: the round is completed."""

    def completion_counted(self, count: int) -> tuple[RoundAction, ...]:
        """Handle that `count` members have completed."""
        return ()

    def event_read(self, cause: FaultRecord | None) -> tuple[RoundAction, ...]:
        """Handle the round's event, as it was read; None: the round is completed."""
        return ()

    def arrival_counted(self, count: int) -> tuple[RoundAction, ...]:
        """Handle that this arrival was counted, as the `count`-th, repetitions included."""
        return (ReadArrivals(self.members),) if count >= len(self.members) else ()

    def arrivals_read(
        self, arrivals: Mapping[InitialRank, Arrival], event: FaultRecord | None
    ) -> tuple[RoundAction, ...]:
        """Handle the arrivals, none if one is missing, and the round's event."""
        if not self.members <= arrivals.keys():
            return ()
        return (Publish(decide(self.iteration, {m: arrivals[m] for m in self.members}, event)),)

    def _enter(self, decision: RoundDecision) -> Enter:
        return Enter(_without(self.members, decision.lost), decision)


ASK_AGAIN: Final = 60.0
"""Seconds between two looks at those in an atomic section, at most."""


@value
class RoundTimeouts:
    """Bounds of a round, in seconds.

    Attributes:
        barrier: from a member's arrival to the decision.
        completion: from a member's completion to that of all.
        last_call: from the event to the abort, for late faults to be recorded first.
    """

    barrier: float
    completion: float
    last_call: float = 0.0


class RoundPhase(enum.Enum):
    """The phase of a member in a round."""

    __hash__ = object.__hash__  # each input is a look-up, and that of an enumeration hashes a name

    OPEN = "in the function, or on its way into it"
    COMPLETE = "has completed, and waits for the others"
    INTERRUPTED = "out of the function, or on its way out: the round restarts"
    ARRIVED = "in the barrier"
    DECIDED = "knows the decision"
    FINISHED = "knows that all have completed"


class Round(Barrier):
    """A living member's round.

    Its inputs come from two threads. One that the other thread has overtaken, or that came before, has no effect.

    Args:
        iteration: the round's number; -1 is the barrier before the first.
        member: this member's initial rank.
        members: the initial ranks that take part.
        timeouts: the round's bounds.
    """

    def __init__(
        self, iteration: int, member: InitialRank, members: frozenset[InitialRank], timeouts: RoundTimeouts
    ) -> None:
        super().__init__(iteration, member, members)
        self.timeouts = timeouts
        self.phase = RoundPhase.OPEN
        self.arrival: Arrival | None = None
        self.deadline = math.inf
        self._holders: Mapping[int, int] = {}

    def fault(self, fault: FaultRecord) -> tuple[RoundAction, ...]:
        """Handle a fault: this member's function failed, or its deadline has passed."""
        return (Announce(fault),) if self.phase in (RoundPhase.OPEN, RoundPhase.COMPLETE) else ()

    def announced(self, cause: FaultRecord | None) -> tuple[RoundAction, ...]:
        """Handle the answer to the announcement: a living member gets the event through its monitor thread."""
        return ()

    def completed(self) -> tuple[RoundAction, ...]:
        """Handle the completion: this member's function returned, or it is a reserve."""
        if self.phase is not RoundPhase.OPEN:
            return ()
        self.phase = RoundPhase.COMPLETE
        return (CountCompletion(),)

    def completion_counted(self, count: int) -> tuple[RoundAction, ...]:
        """Handle that `count` members have completed."""
        return (CloseCompleted(),) if count >= len(self.members) else ()

    def waits_for_completion(self, *, now: float) -> tuple[RoundAction, ...]:
        """Start the timeout within which the others must complete as well."""
        if self.phase is RoundPhase.COMPLETE:
            self.deadline = now + self.timeouts.completion
        return ()

    def event_written(self) -> tuple[RoundAction, ...]:
        """Handle the round's event. A member that has not completed need not read it: the round is not completed."""
        if self.phase is RoundPhase.OPEN:
            return self._interrupted("a fault was announced")
        return (ReadEvent(),) if self.phase is RoundPhase.COMPLETE else ()

    def event_read(self, cause: FaultRecord | None) -> tuple[RoundAction, ...]:
        """Handle the event of a member that has completed; None: all have."""
        if self.phase is not RoundPhase.COMPLETE:
            return ()
        if cause is not None:
            return self._interrupted(str(cause))
        self.phase, self.deadline = RoundPhase.FINISHED, math.inf
        return (Finish(f"all {len(self.members)} ranks have completed iteration {self.iteration}"),)

    def _interrupted(self, why: str) -> tuple[RoundAction, ...]:
        self.phase, self.deadline = RoundPhase.INTERRUPTED, math.inf
        return (EndFunction(f"iteration {self.iteration} ends: {why}"),)

    def arrive(self, arrival: Arrival, *, now: float) -> tuple[RoundAction, ...]:
        """Handle that this member has left the function and is ready for the next round, or leaves."""
        if self.phase not in (RoundPhase.OPEN, RoundPhase.INTERRUPTED):
            return ()
        self.phase, self.arrival, self.deadline = RoundPhase.ARRIVED, arrival, now + self.timeouts.barrier
        return (PutArrival(arrival), CountArrival())

    def leave(self, arrival: Arrival) -> tuple[RoundAction, ...]:
        """Handle that this member leaves before it has entered the round; the others do not wait for it."""
        if self.phase not in (RoundPhase.OPEN, RoundPhase.INTERRUPTED):
            return ()
        self.phase, self.arrival = RoundPhase.ARRIVED, arrival
        return (PutArrival(arrival), CountArrival(), CountCompletion())

    def decided(self, decision: RoundDecision) -> tuple[RoundAction, ...]:
        """Handle the round's decision: a lost member enters no other round, and that of another round has no effect."""
        if self.phase is not RoundPhase.ARRIVED or decision.iteration != self.iteration:
            return ()
        self.phase, self.deadline = RoundPhase.DECIDED, math.inf
        if self.member in decision.lost:
            return ()
        return (self._enter(decision),)

    def tick(self, *, now: float) -> tuple[RoundAction, ...]:
        """Handle that time has passed; `deadline` is the next time at which there is something to do."""
        if now < self.deadline:
            return ()
        self.deadline = math.inf
        return (AskHolders(self.members),)

    def held_up(self, holders: Mapping[int, int], *, now: float) -> tuple[RoundAction, ...]:
        """Handle the members in an atomic section at the deadline, with their leases.

        A section is never interrupted, and a member that saves a checkpoint in it for long is healthy: it is waited for
        while its lease is renewed.
        """
        if self.phase not in (RoundPhase.COMPLETE, RoundPhase.ARRIVED):
            return ()
        moved = any(self._holders.get(member) != lease for member, lease in holders.items())
        self._holders = holders
        bound = self.timeouts.completion if self.phase is RoundPhase.COMPLETE else self.timeouts.barrier
        if moved:
            self.deadline = now + min(ASK_AGAIN, bound)
            return ()
        late = f"iteration {self.iteration}: not all of {len(self.members)} ranks were"
        if self.phase is RoundPhase.COMPLETE:
            return (LateCompletion(f"{late} complete after {bound:g} s"),)
        assert self.arrival is not None
        leaving = replace(self.arrival, status=ArrivalStatus.LEAVING)  # so that later members do not rely on this one
        return (PutArrival(leaving), CountArrival(), GiveUp(f"{late} in the barrier after {bound:g} s"))

    def state(self) -> tuple[object, ...]:
        """Return everything that later decisions depend on, hashable, without the deadline."""
        return self.iteration, self.member, self.members, self.phase, self.arrival

    @classmethod
    def from_state(cls, state: tuple[object, ...], timeouts: RoundTimeouts) -> Round:
        """Restore a round from `state`."""
        iteration, member, members, phase, arrival = state
        assert isinstance(iteration, int) and isinstance(member, int) and isinstance(members, frozenset)
        round_ = cls(iteration, InitialRank(member), members, timeouts)
        assert isinstance(phase, RoundPhase) and isinstance(arrival, Arrival | None)
        round_.phase, round_.arrival = phase, arrival
        return round_

    def check(self) -> None:
        """Raise AssertionError when an invariant does not hold."""
        assert self.iteration >= -1
        waits = self.phase in (RoundPhase.COMPLETE, RoundPhase.ARRIVED)
        assert waits or self.deadline == math.inf, f"I12: a deadline in phase {self.phase}"


class RoundView:
    """One round.

    Attributes:
        round: the machine.
        finished: all members have completed.
        aborted: the abort is done, the main thread may unwind.
        decision: the round's decision.
    """

    __slots__ = ("aborted", "decision", "finished", "round")

    def __init__(self, round_: Round) -> None:
        self.round = round_
        self.finished = self.aborted = False
        self.decision: RoundDecision | None = None

    def is_decided(self) -> bool:
        """The decision is known."""
        return self.decision is not None

    def is_aborted(self) -> bool:
        """The abort is done."""
        return self.aborted

    def is_over(self) -> bool:
        """All have completed, or the round restarts."""
        return self.finished or self.aborted


class Rounds:
    """The rounds of one call, one after another.

    Args:
        member: the rank's initial rank.
        members: the initial ranks of all members.
        timeouts: the bounds of each round.

    Attributes:
        view: the round of the monitor thread.
    """

    def __init__(self, member: InitialRank, members: frozenset[InitialRank], timeouts: RoundTimeouts) -> None:
        self.member, self.timeouts = member, timeouts
        self.view = RoundView(Round(-1, member, members, timeouts))

    def advance(self, members: frozenset[InitialRank]) -> None:
        """Continue with the next round, with these members."""
        following = self.view.round.iteration + 1
        self.view = RoundView(Round(following, self.member, members, self.timeouts))


Endpoint = tuple[str, int]
"""Host and port."""


class RoundStore(Protocol):
    """The keys of the rounds."""

    def announce(self, iteration: int, fault: FaultRecord) -> Awaitable[FaultRecord | None]:
        """Write the fault as the round's event, unless it has one; return the event, None for a completion."""

    def count_completion(self, iteration: int) -> Awaitable[int]:
        """Count this member's completion; return how many were counted."""

    def close_completed(self, iteration: int) -> Awaitable[None]:
        """Write completion as the round's event, unless it has one."""

    def read_event(self, iteration: int) -> Awaitable[FaultRecord | None]:
        """Return the round's event, which is there; None for a completion."""

    def put_arrival(self, iteration: int, arrival: Arrival) -> Awaitable[None]:
        """Write the arrival, over an earlier one of the same member."""

    def count_arrival(self, iteration: int) -> Awaitable[int]:
        """Count the arrival; return how many were counted, repetitions included."""

    def read_arrivals(
        self, iteration: int, members: frozenset[InitialRank]
    ) -> Awaitable[tuple[Mapping[InitialRank, Arrival], FaultRecord | None]]:
        """Return every member's arrival, none if one is missing, and the fault that is the round's event."""

    def publish(self, iteration: int, decision: RoundDecision) -> Awaitable[None]:
        """Write the decision, unless the round has one."""

    def read_decision(self, iteration: int) -> Awaitable[RoundDecision | None]:
        """Return the round's decision, None while it has none."""

    def await_event(self, iteration: int) -> Awaitable[None]:
        """Wait until the round has its event."""

    def await_decision(self, iteration: int) -> Awaitable[RoundDecision]:
        """Wait for the round's decision; return it."""

    def set_rendezvous(self, iteration: int, address: str) -> Awaitable[None]:
        """Write the rendezvous endpoint of the iteration's process group; "": none, unless one is written already."""

    def await_rendezvous(self, iteration: int) -> Awaitable[Endpoint | None]:
        """Wait for that endpoint; return it, None for none."""


async def run_store_actions(machine: Barrier, actions: Iterable[RoundAction], store: RoundStore) -> list[RoundAction]:
    """Execute store actions and pass the answers back, until only other actions are left; return those."""
    pending, iteration = deque(actions), machine.iteration
    rest: list[RoundAction] = []
    while pending:
        action = pending.popleft()
        match action:
            case Announce(fault):
                cause = await store.announce(iteration, fault)
                pending += machine.announced(cause)
            case CountCompletion():
                count = await store.count_completion(iteration)
                pending += machine.completion_counted(count)
            case CloseCompleted():
                await store.close_completed(iteration)
            case ReadEvent():
                cause = await store.read_event(iteration)
                pending += machine.event_read(cause)
            case PutArrival(arrival):
                await store.put_arrival(iteration, arrival)
            case CountArrival():
                count = await store.count_arrival(iteration)
                pending += machine.arrival_counted(count)
            case ReadArrivals(members):
                arrivals, event = await store.read_arrivals(iteration, members)
                pending += machine.arrivals_read(arrivals, event)
            case Publish(decision):
                await store.publish(iteration, decision)
            case _:
                rest.append(action)
    return rest
