"""One restart round of a living member, as a pure machine: who arrived, who died, when it closes, what is decided.

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

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.actions import (
    Abort,
    Action,
    Announce,
    AskHolders,
    CloseCompleted,
    CountArrival,
    CountCompletion,
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

__all__ = ["Round", "RoundTimeouts"]

ASK_AGAIN: Final = 60.0
"""Seconds between two looks at those in an atomic section, at most."""


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
        """This member's function failed, or its own deadline passed."""
        return (Announce(fault),)

    def announced(self, cause: FaultRecord | None, *, now: float) -> tuple[Action, ...]:
        """The round's event after the announcement, which reaches a living member by its monitor thread."""
        return ()

    @takes(Input.COMPLETED)
    def completed(self, *, now: float) -> tuple[Action, ...]:
        """This member's function returned, or it is a reserve."""
        self.phase = Phase.COMPLETE
        return (CountCompletion(),)

    def completion_counted(self, count: int, *, now: float) -> tuple[Action, ...]:
        """`count` members have completed."""
        return (CloseCompleted(),) if count >= len(self.members) else ()

    @takes(Input.WAITS)
    def waits_for_completion(self, *, now: float) -> tuple[Action, ...]:
        """From now on the others have `timeouts.completion` to complete as well."""
        self.deadline = now + self.timeouts.completion
        return ()

    @takes(Input.EVENT)
    def happened(self, *, now: float) -> tuple[Action, ...]:
        """The round has its event. A member that has not completed need not read it: the round is not completed."""
        if self.phase is Phase.OPEN:
            return self._interrupted("a fault was announced")
        return (ReadEvent(),)

    @takes(Input.CAUSE)
    def event(self, cause: FaultRecord | None, *, now: float) -> tuple[Action, ...]:
        """What the event says to a member that has completed; None: all have."""
        if cause is not None:
            return self._interrupted(str(cause))
        self.phase, self.deadline = Phase.FINISHED, math.inf
        return (Finish(f"all {len(self.members)} ranks have completed iteration {self.iteration}"),)

    def _interrupted(self, why: str) -> tuple[Action, ...]:
        self.phase, self.deadline = Phase.INTERRUPTED, math.inf
        return (Abort(f"iteration {self.iteration} ends: {why}"),)

    @takes(Input.ARRIVES)
    def arrive(self, arrival: Arrival, *, now: float) -> tuple[Action, ...]:
        """This member is out of the function and ready for the next round, or leaving."""
        self.phase, self.arrival, self.deadline = Phase.ARRIVED, arrival, now + self.timeouts.barrier
        return (PutArrival(arrival), CountArrival())

    @takes(Input.LEAVES)
    def leave(self, arrival: Arrival, *, now: float) -> tuple[Action, ...]:
        """This member leaves before the round has begun for it; the others wait for it nowhere."""
        self.phase, self.arrival = Phase.ARRIVED, arrival
        return (PutArrival(arrival), CountArrival(), CountCompletion())

    def decided(self, decision: Decision, *, now: float) -> tuple[Action, ...]:
        """The round's decision came; that of another round changes nothing."""
        return self._decided(decision) if decision.iteration == self.iteration else ()

    @takes(Input.DECISION)
    def _decided(self, decision: Decision) -> tuple[Action, ...]:
        self.phase, self.deadline = Phase.DECIDED, math.inf
        if self.member in decision.lost:
            return (Leave(decision, f"initial rank {self.member} is out of the job since iteration {self.iteration}"),)
        return (self._enter(decision),)

    def tick(self, *, now: float) -> tuple[Action, ...]:
        """Time has passed; `deadline` says when this has something to do."""
        if now < self.deadline:
            return ()
        self.deadline = math.inf
        return (AskHolders(self.members),)

    @takes(Input.HOLDERS)
    def held_up(self, holders: Mapping[int, int], *, now: float) -> tuple[Action, ...]:
        """The members in an atomic section when the time was over, with what their leases say.

        A section is never interrupted, and who has saved a checkpoint in it for long is healthy: it is waited for while
        its lease moves.
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
        """Arrive as leaving, so that who comes later does not count on this member."""
        assert self.arrival is not None
        return (PutArrival(replace(self.arrival, status=ArrivalStatus.LEAVING)), CountArrival(), GiveUp(reason))

    def state(self) -> tuple[object, ...]:
        """All that decides the round's future, hashable; the deadline is left out."""
        return self.iteration, self.member, self.members, self.phase, self.arrival

    @classmethod
    def from_state(cls, state: tuple[object, ...], timeouts: RoundTimeouts) -> Round:
        """The round that `state` gave."""
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
