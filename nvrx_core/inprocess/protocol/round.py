"""One restart round, as a pure machine: who arrived, who died, when it closes, what is decided.

A round is one iteration of the wrapped function and the barrier that ends it. Its members are named by their initial
ranks. They share a store with five kinds of keys (`nvrx_core.store.keys`), and every method here answers with the store
operations to do next, in order.

Invariants, for every interleaving and every crash between two operations:
 1. `event` is written once: a round is completed, or it restarts, never both.
 2. An arrival is written before it is counted, and whoever counts at least as many as there are members reads all
    arrivals: however often a member is counted twice (by itself and by its monitor process), the last count finds the
    barrier complete. So the barrier closes, and not before all arrived.
 3. `decision` is written once; all members act on the same bytes.
 4. A death is a fact about the job: the dead member's monitor process arrives for it in this round and, while a
    decision still counts it among the living, in the next one too.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, Decision, decide

__all__ = [
    "Abort",
    "Action",
    "Announce",
    "Answer",
    "AskHolders",
    "CloseCompleted",
    "CountArrival",
    "CountCompletion",
    "DeathReport",
    "Enter",
    "Finish",
    "GiveUp",
    "LateCompletion",
    "Leave",
    "Phase",
    "Publish",
    "PutArrival",
    "ReadArrivals",
    "ReadEvent",
    "Round",
    "RoundTimeouts",
    "StoreAction",
    "WaitFor",
]  # fmt: skip


class Action:
    """What a machine asks its shell to do."""

    __slots__ = ()


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

    members: frozenset[int]


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

    members: frozenset[int]


@dataclass(frozen=True)
class Publish(StoreAction):
    """Write the decision, unless the round has one."""

    decision: Decision


@dataclass(frozen=True)
class Enter(Action):
    """Enter the next round with these members."""

    members: frozenset[int]
    decision: Decision


@dataclass(frozen=True)
class Leave(Action):
    """This member is out of the job."""

    decision: Decision
    reason: str


@dataclass(frozen=True)
class GiveUp(Action):
    """The barrier did not close in time: leave, unless it has a decision after all."""

    reason: str


ASK_AGAIN: Final = 60.0
"""Seconds between two looks at those in an atomic section, at most."""


class Phase(enum.Enum):
    """How far a member is in a round."""

    OPEN = enum.auto()
    COMPLETE = enum.auto()
    INTERRUPTED = enum.auto()
    ARRIVED = enum.auto()
    DECIDED = enum.auto()
    FINISHED = enum.auto()


@dataclass(frozen=True)
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


@lru_cache(maxsize=2)
def _without(members: frozenset[int], lost: tuple[int, ...]) -> frozenset[int]:
    """The members that go on; kept, so that thousands of simulated ones share one set."""
    return members.difference(lost)


class _Barrier:
    """The part of a round that closes it; a member and its monitor process both play it."""

    def __init__(self, iteration: int, member: int, members: frozenset[int]) -> None:
        self.iteration = iteration
        self.member = member
        self.members = members

    def arrival_counted(self, count: int, *, now: float) -> tuple[Action, ...]:
        """`count` arrivals, repetitions included, were counted when this one was."""
        return (ReadArrivals(self.members),) if count >= len(self.members) else ()

    def arrivals_read(
        self, arrivals: Mapping[int, Arrival], event: FaultRecord | None, *, now: float
    ) -> tuple[Action, ...]:
        """The arrivals that were there, none when one is missing, and the round's event."""
        if not self.members <= arrivals.keys():
            return ()
        return (Publish(decide(self.iteration, {m: arrivals[m] for m in self.members}, event)),)


class Round(_Barrier):
    """A living member's round.

    Args:
        iteration: the round's number; -1 is the barrier before the first.
        member: this member's initial rank.
        members: the initial ranks that take part.
        timeouts: the round's bounds.
    """

    def __init__(self, iteration: int, member: int, members: frozenset[int], timeouts: RoundTimeouts) -> None:
        super().__init__(iteration, member, members)
        self.timeouts = timeouts
        self.phase = Phase.OPEN
        self.arrival: Arrival | None = None
        self.deadline = math.inf
        self._holders: Mapping[int, int] = {}

    def fault(self, fault: FaultRecord, *, now: float) -> tuple[Action, ...]:
        """This member's function failed, or its own deadline passed."""
        return (Announce(fault),) if self.phase in (Phase.OPEN, Phase.COMPLETE) else ()

    def announced(self, cause: FaultRecord | None, *, now: float) -> tuple[Action, ...]:
        """The round's event after the announcement, which reaches a living member by its monitor thread."""
        return ()

    def completed(self, *, now: float) -> tuple[Action, ...]:
        """This member's function returned, or it is a reserve."""
        if self.phase is not Phase.OPEN:
            return ()
        self.phase = Phase.COMPLETE
        return (CountCompletion(),)

    def completion_counted(self, count: int, *, now: float) -> tuple[Action, ...]:
        """`count` members have completed."""
        return (CloseCompleted(),) if count >= len(self.members) else ()

    def waits_for_completion(self, *, now: float) -> None:
        """From now on the others have `timeouts.completion` to complete as well."""
        if self.phase is Phase.COMPLETE:
            self.deadline = now + self.timeouts.completion

    def happened(self, *, now: float) -> tuple[Action, ...]:
        """The round has its event. A member that has not completed need not read it: the round is not completed."""
        if self.phase is Phase.OPEN:
            return self._interrupted("a fault was announced")
        return (ReadEvent(),) if self.phase is Phase.COMPLETE else ()

    def event(self, cause: FaultRecord | None, *, now: float) -> tuple[Action, ...]:
        """What the event says to a member that has completed; None: all have."""
        if self.phase is not Phase.COMPLETE:
            return ()
        if cause is not None:
            return self._interrupted(str(cause))
        self.phase, self.deadline = Phase.FINISHED, math.inf
        return (Finish(),)

    def _interrupted(self, why: str) -> tuple[Action, ...]:
        self.phase, self.deadline = Phase.INTERRUPTED, math.inf
        return (Abort(f"iteration {self.iteration} ends: {why}"),)

    def arrive(self, arrival: Arrival, *, now: float) -> tuple[Action, ...]:
        """This member is out of the function and ready for the next round, or leaving."""
        if self.phase in (Phase.ARRIVED, Phase.DECIDED, Phase.FINISHED):
            return ()
        self.phase, self.arrival, self.deadline = Phase.ARRIVED, arrival, now + self.timeouts.barrier
        return (PutArrival(arrival), CountArrival())

    def leave(self, arrival: Arrival, *, now: float) -> tuple[Action, ...]:
        """This member leaves before the round has begun for it; the others wait for it nowhere."""
        if self.phase not in (Phase.OPEN, Phase.INTERRUPTED):
            return ()
        self.phase, self.arrival = Phase.ARRIVED, arrival
        return (PutArrival(arrival), CountArrival(), CountCompletion())

    def decided(self, decision: Decision, *, now: float) -> tuple[Action, ...]:
        """The round's decision came; that of another round changes nothing."""
        if self.phase is not Phase.ARRIVED or decision.iteration != self.iteration:
            return ()
        self.phase, self.deadline = Phase.DECIDED, math.inf
        if self.member in decision.lost:
            return (Leave(decision, f"initial rank {self.member} is out of the job since iteration {self.iteration}"),)
        return (Enter(_without(self.members, decision.lost), decision),)

    def tick(self, *, now: float) -> tuple[Action, ...]:
        """Time has passed; `deadline` says when this has something to do."""
        if now < self.deadline:
            return ()
        self.deadline = math.inf
        return (AskHolders(self.members),)

    def held_up(self, holders: Mapping[int, int], *, now: float) -> tuple[Action, ...]:
        """The members in an atomic section when the time was over, with what their leases say.

        A section is never interrupted, and who has saved a checkpoint in it for long is healthy: it is waited for while
        its lease moves.
        """
        if self.phase not in (Phase.COMPLETE, Phase.ARRIVED):
            return ()
        moved = sorted(member for member, lease in holders.items() if self._holders.get(member) != lease)
        self._holders = holders
        if not moved:
            return self._late()
        bound = self.timeouts.completion if self.phase is Phase.COMPLETE else self.timeouts.barrier
        self.deadline = now + min(ASK_AGAIN, bound)
        return (WaitFor(f"iteration {self.iteration}: waiting for initial ranks {moved}, in an atomic section"),)

    def _late(self) -> tuple[Action, ...]:
        late = f"iteration {self.iteration}: not all of {len(self.members)} ranks were"
        if self.phase is Phase.COMPLETE:
            return (LateCompletion(f"{late} complete after {self.timeouts.completion:g} s"),)
        return self._give_up(f"{late} in the barrier after {self.timeouts.barrier:g} s")

    def _give_up(self, reason: str) -> tuple[Action, ...]:
        """Arrive as leaving, so that who comes later does not count on this member."""
        assert self.arrival is not None
        return (PutArrival(replace(self.arrival, standing=ArrivalStatus.LEAVING)), CountArrival(), GiveUp(reason))

    def state(self) -> tuple[object, ...]:
        """All that decides the round's future, hashable; the deadline is left out."""
        return self.iteration, self.member, self.members, self.phase, self.arrival

    @classmethod
    def from_state(cls, state: tuple[object, ...], timeouts: RoundTimeouts) -> Round:
        """The round that `state` gave."""
        iteration, member, members, phase, arrival = state
        assert isinstance(iteration, int) and isinstance(member, int) and isinstance(members, frozenset)
        round_ = cls(iteration, member, members, timeouts)
        assert isinstance(phase, Phase) and isinstance(arrival, Arrival | None)
        round_.phase, round_.arrival = phase, arrival
        return round_

    def check(self) -> None:
        """Raise AssertionError when an invariant does not hold."""
        assert self.iteration >= -1
        waits = self.phase in (Phase.COMPLETE, Phase.ARRIVED)
        assert waits or self.deadline == math.inf, f"I12: a deadline in phase {self.phase}"


class DeathReport(_Barrier):
    """A dead member's round, played by its monitor process, or by a sibling's when a whole node is gone.

    Args:
        iteration: the last round that the member is known to have begun.
        member: the dead member's initial rank.
        members: the initial ranks that take part.
        fault: what ended it.

    Attributes:
        ends_round: the round's event is this death, not another fault: all have arrived after it was told.
    """

    def __init__(self, iteration: int, member: int, members: frozenset[int], fault: FaultRecord) -> None:
        super().__init__(iteration, member, members)
        self.fault, self.ends_round = fault, False

    def died(self, *, now: float) -> tuple[Action, ...]:
        """The member is dead: tell."""
        return (Announce(self.fault),)

    def announced(self, cause: FaultRecord | None, *, now: float) -> tuple[Action, ...]:
        """The round's event after the announcement: arrive for the dead; None: completed, and nobody waits for it."""
        if cause is None:
            return (Finish(),)
        self.ends_round = (cause.initial_rank, cause.interruption) == (self.member, self.fault.interruption)
        dead = Arrival(initial_rank=self.member, rank=self.fault.rank, standing=ArrivalStatus.DEAD, fault=self.fault)
        return (PutArrival(dead), CountArrival())

    def decided(self, decision: Decision, *, now: float) -> tuple[Action, ...]:
        """The round's decision came; one that counts the dead among the living is followed into the next round."""
        if self.member in decision.lost:
            return (Leave(decision, f"the death of initial rank {self.member} is known to all"),)
        return (Enter(_without(self.members, decision.lost), decision),)

    def next(self, members: frozenset[int]) -> DeathReport:
        """The same death in the following round, where the member has no rank that anybody knows."""
        return DeathReport(self.iteration + 1, self.member, members, replace(self.fault, rank=-1))
