"""The store operations of a round: those of its machines, the waits for event and decision, the rendezvous.

The arrivals of a round have one key for each block of members if the store can append, else one each. The value of a
block has one line for each arrival; the last line of a member counts, as if it had replaced the earlier ones. So a
round of thousands of members has few keys to read and delete. The arrivals before the first iteration have a key each,
because they also show which members took part in the call.

Each raises `StoreFailure` when the store fails, or has a value that no rank has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.guarded_store import BATCH, FOREVER, NOTHING, GuardedStore, batches, guard
from nvrx_core.inprocess.protocol.decision import (
    Arrival,
    RoundDecision,
    decode_arrivals,
    decode_event,
    encode_completion,
)
from nvrx_core.parsing import address
from nvrx_core.rank_assignment.identity import InitialRank, initial_ranks
from nvrx_core.store.keys import StoreKeys

__all__ = ["Arrivals", "RoundOperations"]


class Arrivals:
    """The arrivals of all rounds of a call.

    Args:
        store: the connection.
        keys: the keys of the call.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys = store, keys

    def put(self, iteration: int, arrival: Arrival) -> None:
        """Write a member's arrival; it replaces an earlier one."""
        member = arrival.initial_rank
        if self._in_blocks(iteration):
            self.store.append(self.keys.round(iteration).arrivals(member // BATCH), f"\n{arrival.encode()}")
        else:
            self.store.put(self.keys.round(iteration).arrival(member), arrival.encode())

    def read(self, iteration: int, members: frozenset[InitialRank]) -> Mapping[InitialRank, Arrival]:
        """Return the members' arrivals; empty if one is missing.

        Raises:
            ValueError: when one is malformed.
        """
        keys = list(self._of(iteration, members))
        if not self.store.has(keys):
            return {}
        texts = self.store.read_all(keys)
        if self._in_blocks(iteration):
            return _of_blocks(texts, members)
        arrivals = [arrival for part in batches(texts) for arrival in decode_arrivals(part)]
        found = {arrival.initial_rank: arrival for arrival in arrivals}
        if found.keys() != members:
            raise ValueError(f"the arrivals of {sorted(members)!r:.100} are those of others")
        return found

    def missing(self, iteration: int, members: frozenset[InitialRank]) -> list[InitialRank]:
        """Return the members without an arrival."""
        if not self._in_blocks(iteration):
            return [
                member for member in sorted(members) if not self.store.has([self.keys.round(iteration).arrival(member)])
            ]
        keys = [key for key in self._of(iteration, members) if self.store.has([key])]
        return sorted(members - _arrivals_in(self.store.read_all(keys), []).keys())

    def keys_of(self, iteration: int, members: int) -> Iterable[str]:
        """Return all keys of a round's arrivals."""
        return self._of(iteration, initial_ranks(members))

    def _of(self, iteration: int, members: Iterable[InitialRank]) -> Iterable[str]:
        if self._in_blocks(iteration):
            return (self.keys.round(iteration).arrivals(block) for block in sorted({m // BATCH for m in members}))
        return (self.keys.round(iteration).arrival(member) for member in sorted(members))

    def _in_blocks(self, iteration: int) -> bool:
        return self.store.appends and iteration >= 0


def _of_blocks(texts: Iterable[bytes], members: frozenset[InitialRank]) -> Mapping[InitialRank, Arrival]:
    """Return the last arrival of each member; empty if one is missing. Malformed lines are ignored."""
    strange = list[bytes]()
    found = _arrivals_in(texts, strange)
    if members <= found.keys():
        return {member: found[member] for member in members}
    if strange:
        raise ValueError(f"no arrival: {strange[0]!r:.100}")
    return {}


def _arrivals_in(texts: Iterable[bytes], strange: list[bytes]) -> dict[InitialRank, Arrival]:
    lines = [line for text in texts for line in text.split(b"\n") if line]
    try:
        arrivals = [arrival for part in batches(lines) for arrival in decode_arrivals(part)]
    except ValueError:
        arrivals = [arrival for line in lines for arrival in _readable(line, strange)]
    return {arrival.initial_rank: arrival for arrival in arrivals}


def _readable(line: bytes, strange: list[bytes]) -> Iterator[Arrival]:
    try:
        yield Arrival.decode(line)
    except ValueError:
        strange.append(line)


class RoundOperations:
    """The operations of a call's rounds on one connection. Each raises `StoreFailure` when the store fails.

    Args:
        store: the connection.
        keys: the keys of the call.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys, self._arrivals = store, keys, Arrivals(store, keys)

    def announce(self, iteration: int, fault: FaultRecord) -> FaultRecord | None:
        """Write the fault as the round's event, unless there is one; return the event, None for a completion."""
        with guard():
            return _event(self.store.put_once(self.keys.round(iteration).event, fault.encode()), fault)

    def count_completion(self, iteration: int) -> int:
        """Count this member's completion; return how many were counted."""
        with guard():
            return self.store.count(self.keys.round(iteration).completed)

    def close_completed(self, iteration: int) -> None:
        """Write completion as the round's event, unless it has one."""
        with guard():
            self.store.put_once(self.keys.round(iteration).event, encode_completion())

    def read_event(self, iteration: int) -> FaultRecord | None:
        """Return the round's event, which is there; None for a completion."""
        with guard():
            return decode_event(self.store.try_get(self.keys.round(iteration).event) or b"")

    def put_arrival(self, iteration: int, arrival: Arrival) -> None:
        """Write the arrival, over an earlier one of the same member."""
        with guard():
            self._arrivals.put(iteration, arrival)

    def count_arrival(self, iteration: int) -> int:
        """Count an arrival; return how many were counted."""
        with guard():
            return self.store.count(self.keys.round(iteration).arrived)

    def read_arrivals(
        self, iteration: int, members: frozenset[InitialRank]
    ) -> tuple[Mapping[InitialRank, Arrival], FaultRecord | None]:
        """Return every member's arrival, none if one is missing, and the fault that is the round's event."""
        key = self.keys.round(iteration).event
        with guard():
            arrivals = self._arrivals.read(iteration, members)
            # a look at a key that is not there would end the others' waits for it
            event = self.store.try_get(key) if self.store.has([key]) else None
            return arrivals, None if event is None else _event(event, None)

    def publish(self, iteration: int, decision: RoundDecision) -> None:
        """Write the decision, unless the round has one."""
        with guard():
            self.store.put_once(self.keys.round(iteration).decision, decision.encode())

    def missing(self, iteration: int, members: frozenset[InitialRank]) -> list[InitialRank]:
        """Return the members that have not arrived in the round."""
        with guard():
            return self._arrivals.missing(iteration, members)

    def await_event(self, iteration: int) -> None:
        """Block until the round has its event; a missing event is never read."""
        self.store.wait_signal(self.keys.round(iteration).event)

    def has_event(self, iteration: int) -> bool:
        """Return whether the round has its event, without ending a wait for it."""
        return self.store.has([self.keys.round(iteration).event])

    def await_decision(self, iteration: int, timeout: timedelta = FOREVER) -> RoundDecision:
        """Block until the round has its decision."""
        with guard():
            decision = RoundDecision.decode(self.store.wait_value(self.keys.round(iteration).decision, timeout))
            if decision.iteration != iteration:
                raise ValueError(f"the decision of round {iteration} is of round {decision.iteration}")
            return decision

    def read_decision(self, iteration: int) -> RoundDecision | None:
        """Return the round's decision, None if it has none yet."""
        with guard():
            text = self.store.try_get(self.keys.round(iteration).decision)
            return None if text is None else RoundDecision.decode(text)

    def has_decision(self, iteration: int) -> bool:
        """Return whether the round has its decision, without ending a wait for it."""
        return self.store.has([self.keys.round(iteration).decision])

    def set_rendezvous(self, iteration: int, address: str) -> None:
        """Write the rendezvous endpoint of the round's process group; "": there is none, because its rank 0 is lost."""
        if address:
            self.store.put(self.keys.round(iteration).master, address)
        else:
            self.store.put_once(self.keys.round(iteration).master, NOTHING)

    def await_rendezvous(self, iteration: int) -> tuple[str, int] | None:
        """Block until the rendezvous endpoint of the round's process group is written; None if its rank 0 is lost."""
        with guard():
            text = self.store.wait_value(self.keys.round(iteration).master)
            return None if text == NOTHING.encode() else address(text)


def _event(text: bytes, otherwise: FaultRecord | None) -> FaultRecord | None:
    """Return the event; `otherwise` for a malformed one, which is not a completion."""
    try:
        return decode_event(text)
    except ValueError:
        return otherwise
