"""The store's keys of one round of a simulated job, and its operations.

The operations of `inprocess/coordination/control_store.py`, on a value instead of a server; `test_slots.py` holds
the two against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.decision import Arrival, RoundDecision
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["KEYS", "Slots"]


KEYS: Final[dict[str, object]] = {"event": (), "arrived": 0, "completed": 0, "decision": None, "master": None}
"""The keys of a round that are deleted by name, without a value."""


class Slots:
    """The keys of one round.

    Attributes:
        event: (None,) for completion, (fault,) for a fault, () while there is none.
        arrivals: by member.
        arrived: how many arrivals were counted.
        completed: how many completions were counted.
        decision: the round's decision.
        hosted: the place to meet is there.
        master: whether there is a place to meet; None while nobody has said.
        waiting: what is called when a key has its value, by the key's name.
    """

    __slots__ = ("arrivals", "arrived", "completed", "decision", "event", "hosted", "master", "waiting")

    def __init__(self) -> None:
        self.event: tuple[FaultRecord | None, ...] = ()
        self.arrivals: dict[InitialRank, Arrival] = {}
        self.arrived = self.completed = 0
        self.decision: RoundDecision | None = None
        self.master: bool | None = None
        self.hosted = False
        self.waiting: dict[str, list[Any]] = {}

    def delete(self, key: str) -> bool:
        """Delete one key; the arrivals go with their count. Returns whether it existed."""
        if key not in KEYS:
            return False
        existed: bool = getattr(self, key) != KEYS[key]
        setattr(self, key, KEYS[key])
        if key == "arrived":
            self.arrivals = {}
        return existed

    def names(self) -> list[str]:
        """The names of the keys that have a value."""
        return [key for key, empty in KEYS.items() if getattr(self, key) != empty]

    def found(self, key: str) -> Any:
        """What a waiter is told; None while the key has no value."""
        return (self.event or None) if key == "event" else getattr(self, key)

    # The operations, each of which is atomic

    def announce(self, fault: FaultRecord) -> FaultRecord | None:
        self.event = self.event or (fault,)
        return self.event[0]

    def read_event(self) -> FaultRecord | None:
        assert self.event, "I13: an event is read that is not there"
        return self.event[0]

    def count_completion(self) -> int:
        self.completed += 1
        return self.completed

    def close_completed(self) -> None:
        self.event = self.event or (None,)

    def put_arrival(self, arrival: Arrival) -> None:
        self.arrivals[arrival.initial_rank] = arrival

    def count_arrival(self) -> int:
        self.arrived += 1
        return self.arrived

    def read_arrivals(
        self, members: frozenset[InitialRank]
    ) -> tuple[Mapping[InitialRank, Arrival], FaultRecord | None]:
        complete = members <= self.arrivals.keys()
        found = {member: self.arrivals[member] for member in members} if complete else {}
        return found, self.event[0] if self.event else None

    def publish(self, decision: RoundDecision) -> None:
        self.decision = self.decision or decision

    def look_up(self) -> RoundDecision | None:
        """Read the round's decision; None while there is none."""
        return self.decision

    def say_where(self, address: str) -> None:
        """Say where the round's process group meets, unless that is said already; "": nowhere, rank 0 is lost."""
        if self.master is None or address:
            self.master = bool(address)
