"""The store's record of one round as a value, and the effect of each operation on it.

The operations are carried out by the shipped `RoundOperations`, on a store that is a dictionary; a search can
deliver the answer later, or never.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.control_store import RoundOperations
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.protocol.decision import Arrival, RoundDecision, decode_event, encode_completion
from nvrx_core.inprocess.protocol.round import RoundTimeouts
from nvrx_core.store.keys import RoundKeys, StoreKeys

from .memory_store import MemoryStore
from .slots import Slots

__all__ = ["Record", "perform", "record_of", "values_of"]

KEYS: Final = StoreKeys("job", 0, 0)
ROUND: Final = 0
ROUND_KEYS: Final = KEYS.round(ROUND)
TIMEOUTS: Final = RoundTimeouts(barrier=1e9, completion=1e9)


class Record(NamedTuple):
    """The keys of one round.

    Attributes:
        event: (None,) for completion, (fault,) for a fault, () while there is none.
        arrivals: by member.
        arrived: how many arrivals were counted.
        completed: how many completions were counted.
        decision: the round's decision.
        master: where the round's process group meets, "-" for nowhere; in the store where the ranks ask for it.
        hosted: where it can meet; in no store.
    """

    event: tuple[FaultRecord | None, ...] = ()
    arrivals: tuple[tuple[int, Arrival], ...] = ()
    arrived: int = 0
    completed: int = 0
    decision: RoundDecision | None = None
    master: str = ""
    hosted: str = ""


OPERATIONS: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    Slots.announce: RoundOperations.announce,
    Slots.close_completed: RoundOperations.close_completed,
    Slots.count_arrival: RoundOperations.count_arrival,
    Slots.count_completion: RoundOperations.count_completion,
    Slots.look_up: RoundOperations.read_decision,
    Slots.publish: RoundOperations.publish,
    Slots.put_arrival: RoundOperations.put_arrival,
    Slots.read_arrivals: RoundOperations.read_arrivals,
    Slots.read_event: RoundOperations.read_event,
    Slots.say_where: RoundOperations.set_rendezvous,
}
"""The shipped operation for each of the simulation's."""


def perform(record: Record, operation: Callable[..., Any], *args: Any) -> tuple[Record, Any]:
    """The record after the operation, one of `Slots`, and the answer."""
    store = MemoryStore(values_of(record))
    answer = OPERATIONS[operation](RoundOperations(GuardedStore(store), KEYS), ROUND, *args)  # type: ignore[arg-type]
    return record_of(store.values)._replace(hosted=record.hosted), answer


def values_of(record: Record, keys: RoundKeys = ROUND_KEYS) -> dict[str, bytes]:
    """The keys of a round in the store, with their values."""
    values = dict[str, bytes]()
    if record.arrivals:
        values[keys.arrivals(0)] = b"".join(b"\n" + _encoded(arrival) for _, arrival in record.arrivals)
    if record.event:
        values[keys.event] = _encoded(record.event[0])
    if record.arrived:
        values[keys.arrived] = b"%d" % record.arrived
    if record.completed:
        values[keys.completed] = b"%d" % record.completed
    if record.decision is not None:
        values[keys.decision] = _encoded(record.decision)
    if record.master:
        values[keys.master] = record.master.encode()
    return values


def record_of(values: Mapping[str, bytes], keys: RoundKeys = ROUND_KEYS) -> Record:
    """The round that these keys of a store are."""
    event, decision = values.get(keys.event), values.get(keys.decision)
    lines = values.get(keys.arrivals(0), b"").split(b"\n")[1:]
    arrivals = {arrival.initial_rank: arrival for arrival in map(_arrival, lines)}
    return Record(
        event=(_event(event),) if event else (),
        arrivals=tuple(sorted(arrivals.items(), key=itemgetter(0))),
        arrived=int(values.get(keys.arrived, b"0")),
        completed=int(values.get(keys.completed, b"0")),
        decision=_decision(decision) if decision else None,
        master=values.get(keys.master, b"").decode(),
    )  # fmt: skip


@functools.cache
def _encoded(value: FaultRecord | Arrival | RoundDecision | None) -> bytes:
    return (encode_completion() if value is None else value.encode()).encode()


_event = functools.cache(decode_event)
_arrival = functools.cache(Arrival.decode)
_decision = functools.cache(RoundDecision.decode)
