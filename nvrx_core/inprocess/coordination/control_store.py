"""The control store of one call on one connection, in parts: each caller gets the part that it needs.

Used by a rank and by its monitor process alike. Every failure of the store is raised as `StoreFailure`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Concatenate, ParamSpec, TypeVar

from nvrx_core.fault.record import FaultRecord
from nvrx_core.flow import operation
from nvrx_core.inprocess.coordination.arrivals import Arrivals
from nvrx_core.inprocess.coordination.guarded_store import FOREVER, NOTHING, GuardedStore, guard
from nvrx_core.inprocess.coordination.hang_reports import HangReports
from nvrx_core.inprocess.coordination.housekeeping import KeyDeletion
from nvrx_core.inprocess.coordination.membership import Membership, ProgressSurvey
from nvrx_core.inprocess.protocol.decision import Arrival, RoundDecision, decode_event, encode_completion
from nvrx_core.parsing import address
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.store.keys import StoreKeys

__all__ = ["CallStore", "ControlStore", "RoundOperations"]


class RoundOperations:
    """The operations of a call's rounds on one connection. Each raises `StoreFailure` when the store fails.

    `RoundStore` says what each does. One request, unless it says otherwise; torch's server tells those who wait for a
    key of each compare-and-set, even of one that writes nothing.

    Args:
        store: the connection.
        keys: the keys of the call.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys, self._arrivals = store, keys, Arrivals(store, keys)

    def announce(self, iteration: int, fault: FaultRecord) -> FaultRecord | None:
        """Announce by a compare-and-set, whose answer is the event; a malformed event counts as this fault."""
        return _event(self.store.put_once(self.keys.round(iteration).event, fault.encode()), fault)

    def count_completion(self, iteration: int) -> int:
        """Add to the counter of the round."""
        return self.store.count(self.keys.round(iteration).completed)

    def close_completed(self, iteration: int) -> None:
        """Complete by a compare-and-set, which leaves a fault that was announced meanwhile."""
        self.store.put_once(self.keys.round(iteration).event, encode_completion())

    def read_event(self, iteration: int) -> FaultRecord | None:
        """Read by a compare-and-set: the event is there, so nobody waits for its key."""
        with guard():
            return decode_event(self.store.try_get(self.keys.round(iteration).event) or b"")

    def put_arrival(self, iteration: int, arrival: Arrival) -> None:
        """Append to the arrivals of a block of members, if the store can; else write the member's own key."""
        self._arrivals.put(iteration, arrival)

    def count_arrival(self, iteration: int) -> int:
        """Add to the counter of the round, once more when a monitor process arrives for a member that has done so."""
        return self.store.count(self.keys.round(iteration).arrived)

    def read_arrivals(
        self, iteration: int, members: frozenset[InitialRank]
    ) -> tuple[Mapping[InitialRank, Arrival], FaultRecord | None]:
        """Read in several requests: by batches of keys, and for the event whether it is there before what it is."""
        key = self.keys.round(iteration).event
        with guard():
            arrivals = self._arrivals.read(iteration, members)
            # a look at a key that is not there would end the others' waits for it
            event = self.store.try_get(key) if self.store.has([key]) else None
            return arrivals, None if event is None else _event(event, None)

    def publish(self, iteration: int, decision: RoundDecision) -> None:
        """Publish by a compare-and-set: of several members that close the barrier, the first decides."""
        self.store.put_once(self.keys.round(iteration).decision, decision.encode())

    def missing(self, iteration: int, members: frozenset[InitialRank]) -> list[InitialRank]:
        """Return the members that have not arrived in the round."""
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
        """Read by a compare-and-set; those who wait for the decision look, and wait on."""
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


class ControlStore:
    """The operations of a call on its store.

    Args:
        store: the connection.
        keys: the call's keys, in the generation that the ranks have agreed on.

    Attributes:
        rounds: the operations of a round.
        membership: the leases, and the members that have left.
        survey: the progress of the slowest members.
        deletion: the deletion of keys.
        hangs: the reports of hangs.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys = store, keys
        self.rounds, self.membership = RoundOperations(store, keys), Membership(store, keys)
        self.survey, self.deletion = ProgressSurvey(store, keys, self.membership), KeyDeletion(store, keys)
        self.hangs = HangReports(store, keys)


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _of_round(
    method: Callable[Concatenate[RoundOperations, Parameters], Result],
) -> Callable[Concatenate[CallStore, Parameters], Awaitable[Result]]:
    """Return an operation of a round as a flow awaits it; the connection is that of the moment when it is done."""

    def carry_out(self: CallStore, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return method(self._control_store().rounds, *args, **kwargs)

    return operation(carry_out)


class CallStore:
    """The control store as the port of a flow, a `CallStorePort`.

    Args:
        control_store: returns the control store, on the flow's connection.
        size: the initial number of members.
        decided_within: bound of a wait for a decision.
    """

    def __init__(
        self, control_store: Callable[[], ControlStore], size: int, decided_within: timedelta = FOREVER
    ) -> None:
        self._control_store, self._size, self._decided_within = control_store, size, decided_within

    announce = _of_round(RoundOperations.announce)
    count_completion = _of_round(RoundOperations.count_completion)
    close_completed = _of_round(RoundOperations.close_completed)
    read_event = _of_round(RoundOperations.read_event)
    put_arrival = _of_round(RoundOperations.put_arrival)
    count_arrival = _of_round(RoundOperations.count_arrival)
    read_arrivals = _of_round(RoundOperations.read_arrivals)
    publish = _of_round(RoundOperations.publish)
    read_decision = _of_round(RoundOperations.read_decision)
    await_event = _of_round(RoundOperations.await_event)
    set_rendezvous = _of_round(RoundOperations.set_rendezvous)
    await_rendezvous = _of_round(RoundOperations.await_rendezvous)
    has_event = _of_round(RoundOperations.has_event)
    has_decision = _of_round(RoundOperations.has_decision)

    @operation
    def await_decision(self, iteration: int) -> RoundDecision:
        """Wait for the round's decision; return it."""
        return self._control_store().rounds.await_decision(iteration, self._decided_within)

    @operation
    def mark_left(self, member: InitialRank, *, silent: bool = False) -> None:
        """Write that a member no longer needs the store; a silent one that is lost may still read its decision."""
        self._control_store().membership.mark_left(member, silent=silent)

    @operation
    def count_out(self, iteration: int, living: int) -> None:
        """Count this member out of the completed call; the last of `living` deletes its keys, if all have left."""
        self._control_store().deletion.count_out(iteration, living, self._size)

    @operation
    def delete_if_over(self) -> None:
        """Delete the call's keys if it is completed and all other members have left."""
        self._control_store().deletion.delete_if_over(self._size)
