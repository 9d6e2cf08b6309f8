"""The store's keys of one round of a simulated job, and the effect of each action: one atomic operation.

The operations of `inprocess/coordination/control_store.py`, on a value instead of a server; `test_slots.py` holds
the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.decision import Arrival, RoundDecision
from nvrx_core.inprocess.protocol.round import (
    Announce,
    CloseCompleted,
    CountArrival,
    CountCompletion,
    Publish,
    PutArrival,
    ReadArrivals,
    ReadEvent,
    StoreAction,
)

__all__ = ["KEYS", "RULES", "LookUp", "SayWhere", "Slots"]


KEYS: Final[dict[str, object]] = {"event": (), "arrived": 0, "completed": 0, "decision": None, "master": None}
"""The keys of a round that are deleted by name, without a value."""


@dataclass(frozen=True)
class SayWhere(StoreAction):
    """Say where the round's process group meets, unless that is said already; "": nowhere, rank 0 is lost."""

    address: str


@dataclass(frozen=True)
class LookUp(StoreAction):
    """Read the round's decision; None while there is none."""


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
        self.arrivals: dict[int, Arrival] = {}
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

    def perform(self, action: StoreAction) -> Any:
        """Carry out an action; returns what the machine is told."""
        return RULES[type(action)](self, action)

    def announce(self, action: Announce) -> Any:
        self.event = self.event or (action.fault,)
        return self.event[0]

    def read_event(self, _: ReadEvent) -> Any:
        assert self.event, "I13: an event is read that is not there"
        return self.event[0]

    def count_completion(self, _: CountCompletion) -> Any:
        self.completed += 1
        return self.completed

    def close_completed(self, _: CloseCompleted) -> Any:
        self.event = self.event or (None,)
        return None

    def put_arrival(self, action: PutArrival) -> Any:
        self.arrivals[action.arrival.initial_rank] = action.arrival
        return None

    def count_arrival(self, _: CountArrival) -> Any:
        self.arrived += 1
        return self.arrived

    def read_arrivals(self, action: ReadArrivals) -> Any:
        complete = action.members <= self.arrivals.keys()
        found = {member: self.arrivals[member] for member in action.members} if complete else {}
        return found, self.event[0] if self.event else None

    def publish(self, action: Publish) -> Any:
        self.decision = self.decision or action.decision
        return None

    def say_where(self, action: SayWhere) -> Any:
        if self.master is None or action.address:
            self.master = bool(action.address)
        return None

    def look_up(self, _: LookUp) -> RoundDecision | None:
        return self.decision


RULES: Final[dict[type[StoreAction], Callable[[Slots, Any], Any]]] = {
    Announce: Slots.announce,
    CountCompletion: Slots.count_completion,
    CloseCompleted: Slots.close_completed,
    ReadEvent: Slots.read_event,
    PutArrival: Slots.put_arrival,
    CountArrival: Slots.count_arrival,
    ReadArrivals: Slots.read_arrivals,
    Publish: Slots.publish,
    SayWhere: Slots.say_where,
    LookUp: Slots.look_up,
}
