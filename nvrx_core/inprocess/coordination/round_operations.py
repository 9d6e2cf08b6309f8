"""The store operations of a round: those of its machines, the waits for event and decision, the rendezvous."""

from __future__ import annotations

from datetime import timedelta

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.arrivals import Arrivals
from nvrx_core.inprocess.coordination.guarded_store import FOREVER, NOTHING, GuardedStore, guard
from nvrx_core.inprocess.protocol.actions import (
    Announce,
    Answer,
    CloseCompleted,
    CountArrival,
    CountCompletion,
    Publish,
    PutArrival,
    ReadArrivals,
    ReadEvent,
    StoreAction,
)
from nvrx_core.inprocess.protocol.decision import Decision, decode_event, encode_completion
from nvrx_core.parsing import address
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.store.keys import StoreKeys

__all__ = ["RoundOperations"]


class RoundOperations:
    """The operations of a call's rounds on one connection. Each raises `StoreFailure` when the store fails.

    Args:
        store: the connection.
        keys: the keys of the call.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys, self._arrivals = store, keys, Arrivals(store, keys)

    def perform(self, action: StoreAction, iteration: int) -> Answer:
        """Execute one operation of a round's machine; return the answer.

        Raises:
            StoreFailure: when the store fails, or has a value that no rank has written.
        """
        with guard():
            return self._perform(action, iteration)

    def _perform(self, action: StoreAction, k: int) -> Answer:
        store, keys = self.store, self.keys
        match action:
            case Announce(fault):
                return "announced", _event(store.put_once(keys.round(k).event, fault.encode()), fault)
            case CountCompletion():
                return "completion_counted", store.count(keys.round(k).completed)
            case CloseCompleted():
                store.put_once(keys.round(k).event, encode_completion())
            case ReadEvent():
                return "event", decode_event(store.try_get(keys.round(k).event) or b"")
            case PutArrival(arrival):
                self._arrivals.put(k, arrival)
            case CountArrival():
                return "arrival_counted", store.count(keys.round(k).arrived)
            case ReadArrivals(members):
                return "arrivals_read", self._arrivals.read(k, members), self._first_fault(k)
            case Publish(decision):
                store.put_once(keys.round(k).decision, decision.encode())
            case _:
                raise AssertionError(action)
        return None

    def _first_fault(self, iteration: int) -> FaultRecord | None:
        """Return the fault that is the round's event; None if there is none, or it is malformed."""
        key = self.keys.round(iteration).event
        if not self.store.has([key]):  # a look at the key itself would end the others' waits for it
            return None
        return _event(self.store.try_get(key) or b"", None)

    def missing(self, iteration: int, members: frozenset[InitialRank]) -> list[InitialRank]:
        """Return the members that have not arrived in the round."""
        with guard():
            return self._arrivals.missing(iteration, members)

    def announce(self, iteration: int, fault: FaultRecord) -> None:
        """Write the fault of a living member as the round's event, unless there is one."""
        self.perform(Announce(fault), iteration)

    def wait_event(self, iteration: int) -> None:
        """Block until the round has its event; a missing event is never read."""
        self.store.wait_signal(self.keys.round(iteration).event)

    def has_event(self, iteration: int) -> bool:
        """Return whether the round has its event, without ending a wait for it."""
        return self.store.has([self.keys.round(iteration).event])

    def wait_decision(self, iteration: int, timeout: timedelta = FOREVER) -> Decision:
        """Block until the round has its decision."""
        with guard():
            decision = Decision.decode(self.store.wait_value(self.keys.round(iteration).decision, timeout))
            if decision.iteration != iteration:
                raise ValueError(f"the decision of round {iteration} is of round {decision.iteration}")
            return decision

    def decision(self, iteration: int) -> Decision | None:
        """Return the round's decision, None if it has none yet."""
        with guard():
            text = self.store.try_get(self.keys.round(iteration).decision)
            return None if text is None else Decision.decode(text)

    def has_decision(self, iteration: int) -> bool:
        """Return whether the round has its decision, without ending a wait for it."""
        return self.store.has([self.keys.round(iteration).decision])

    def set_rendezvous(self, iteration: int, address: str) -> None:
        """Write the rendezvous endpoint of the round's process group; "": there is none, because its rank 0 is lost."""
        if address:
            self.store.put(self.keys.round(iteration).master, address)
        else:
            self.store.put_once(self.keys.round(iteration).master, NOTHING)

    def wait_rendezvous(self, iteration: int) -> tuple[str, int] | None:
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
