"""One restart round of a living member, as a pure machine: arrivals, deaths, the end of the barrier, the decision.

A round is one iteration of the wrapped function and the barrier that ends it. Its members are named by their initial
ranks. They share a store with five kinds of keys (`nvrx_core.store.keys`), and every method returns the next store
operations, in order.

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

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.actions import (
    Action,
    Announce,
    AskHolders,
    CloseCompleted,
    CountArrival,
    CountCompletion,
    EndFunction,
    Finish,
    GiveUp,
    LateCompletion,
    Leave,
    PutArrival,
    ReadEvent,
    WaitFor,
)
from nvrx_core.inprocess.protocol.barrier import Barrier
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, Decision
from nvrx_core.inprocess.protocol.transitions import Input, Phase, takes
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.values import value

__all__ = ["Round", "RoundTimeouts"]

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


class Round(Barrier):
    """A living member's round.

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
        self.phase = Phase.OPEN
        self.arrival: Arrival | None = None
        self.deadline = math.inf
        self._holders: Mapping[int, int] = {}

    @takes(Input.FAULT)
    def fault(self, fault: FaultRecord, *, now: float) -> tuple[Action, ...]:
        """Handle a fault: this member's function failed, or its deadline has passed."""
        return (Announce(fault),)

    def announced(self, cause: FaultRecord | None, *, now: float) -> tuple[Action, ...]:
        """Handle the answer to the announcement: a living member gets the event through its monitor thread."""
        return ()

    @takes(Input.COMPLETED)
    def completed(self, *, now: float) -> tuple[Action, ...]:
        """Handle the completion: this member's function returned, or it is a reserve."""
        self.phase = Phase.COMPLETE
        return (CountCompletion(),)

    def completion_counted(self, count: int, *, now: float) -> tuple[Action, ...]:
        """Handle that `count` members have completed."""
        return (CloseCompleted(),) if count >= len(self.members) else ()

    @takes(Input.WAITS)
    def waits_for_completion(self, *, now: float) -> tuple[Action, ...]:
        """Start the timeout within which the others must complete as well."""
        self.deadline = now + self.timeouts.completion
        return ()

    @takes(Input.EVENT)
    def happened(self, *, now: float) -> tuple[Action, ...]:
        """Handle the round's event. A member that has not completed need not read it: the round is not completed."""
        if self.phase is Phase.OPEN:
            return self._interrupted("a fault was announced")
        return (ReadEvent(),)

    @takes(Input.CAUSE)
    def event(self, cause: FaultRecord | None, *, now: float) -> tuple[Action, ...]:
        """Handle the event of a member that has completed; None: all have."""
        if cause is not None:
            return self._interrupted(str(cause))
        self.phase, self.deadline = Phase.FINISHED, math.inf
        return (Finish(f"all {len(self.members)} ranks have completed iteration {self.iteration}"),)

    def _interrupted(self, why: str) -> tuple[Action, ...]:
        self.phase, self.deadline = Phase.INTERRUPTED, math.inf
        return (EndFunction(f"iteration {self.iteration} ends: {why}"),)

    @takes(Input.ARRIVES)
    def arrive(self, arrival: Arrival, *, now: float) -> tuple[Action, ...]:
        """Handle that this member has left the function and is ready for the next round, or leaves."""
        self.phase, self.arrival, self.deadline = Phase.ARRIVED, arrival, now + self.timeouts.barrier
        return (PutArrival(arrival), CountArrival())

    @takes(Input.LEAVES)
    def leave(self, arrival: Arrival, *, now: float) -> tuple[Action, ...]:
        """Handle that this member leaves before it has entered the round; the others do not wait for it."""
        self.phase, self.arrival = Phase.ARRIVED, arrival
        return (PutArrival(arrival), CountArrival(), CountCompletion())

    def decided(self, decision: Decision, *, now: float) -> tuple[Action, ...]:
        """Handle the round's decision; that of another round has no effect."""
        return self._decided(decision) if decision.iteration == self.iteration else ()

    @takes(Input.DECISION)
    def _decided(self, decision: Decision) -> tuple[Action, ...]:
        self.phase, self.deadline = Phase.DECIDED, math.inf
        if self.member in decision.lost:
            return (Leave(decision, f"initial rank {self.member} is out of the job since iteration {self.iteration}"),)
        return (self._enter(decision),)

    def tick(self, *, now: float) -> tuple[Action, ...]:
        """Handle that time has passed; `deadline` is the next time at which there is something to do."""
        if now < self.deadline:
            return ()
        self.deadline = math.inf
        return (AskHolders(self.members),)

    @takes(Input.HOLDERS)
    def held_up(self, holders: Mapping[int, int], *, now: float) -> tuple[Action, ...]:
        """Handle the members in an atomic section at the deadline, with their leases.

        A section is never interrupted, and a member that saves a checkpoint in it for long is healthy: it is waited for
        while its lease is renewed.
        """
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
        """Arrive as leaving, so that later members do not rely on this member."""
        assert self.arrival is not None
        return (PutArrival(replace(self.arrival, status=ArrivalStatus.LEAVING)), CountArrival(), GiveUp(reason))

    def state(self) -> tuple[object, ...]:
        """Return everything that later decisions depend on, hashable, without the deadline."""
        return self.iteration, self.member, self.members, self.phase, self.arrival

    @classmethod
    def from_state(cls, state: tuple[object, ...], timeouts: RoundTimeouts) -> Round:
        """Restore a round from `state`."""
        iteration, member, members, phase, arrival = state
        assert isinstance(iteration, int) and isinstance(member, int) and isinstance(members, frozenset)
        round_ = cls(iteration, InitialRank(member), members, timeouts)
        assert isinstance(phase, Phase) and isinstance(arrival, Arrival | None)
        round_.phase, round_.arrival = phase, arrival
        return round_

    def check(self) -> None:
        """Raise AssertionError when an invariant does not hold."""
        assert self.iteration >= -1
        waits = self.phase in (Phase.COMPLETE, Phase.ARRIVED)
        assert waits or self.deadline == math.inf, f"I12: a deadline in phase {self.phase}"
