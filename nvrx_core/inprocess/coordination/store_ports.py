"""The control store as the ports of the flows, on the connection of the flow's shell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta

from nvrx_core.fault.record import FaultRecord
from nvrx_core.flow import operation
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import FOREVER
from nvrx_core.inprocess.coordination.round_operations import RoundOperations
from nvrx_core.inprocess.protocol.decision import Arrival, Decision
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["CallStore", "StoreOfRounds"]

log = logging.getLogger("nvrx_core.inprocess")


class StoreOfRounds:
    """The `RoundStore` of a flow.

    Args:
        rounds: returns the operations, on the flow's connection.
        decided_within: bound of a wait for a decision.
    """

    def __init__(self, rounds: Callable[[], RoundOperations], decided_within: timedelta = FOREVER) -> None:
        self._rounds, self._decided_within = rounds, decided_within

    @operation
    def announce(self, iteration: int, fault: FaultRecord) -> FaultRecord | None:
        """Write the fault as the round's event, unless it has one; return the event, None for a completion."""
        return self._rounds().announce(iteration, fault)

    @operation
    def count_completion(self, iteration: int) -> int:
        """Count this member's completion; return how many were counted."""
        return self._rounds().count_completion(iteration)

    @operation
    def close_completed(self, iteration: int) -> None:
        """Write completion as the round's event, unless it has one."""
        self._rounds().close_completed(iteration)

    @operation
    def read_event(self, iteration: int) -> FaultRecord | None:
        """Return the round's event, which is there; None for a completion."""
        return self._rounds().read_event(iteration)

    @operation
    def put_arrival(self, iteration: int, arrival: Arrival) -> None:
        """Write the arrival, over an earlier one of the same member."""
        self._rounds().put_arrival(iteration, arrival)

    @operation
    def count_arrival(self, iteration: int) -> int:
        """Count the arrival; return how many were counted, repetitions included."""
        return self._rounds().count_arrival(iteration)

    @operation
    def read_arrivals(
        self, iteration: int, members: frozenset[InitialRank]
    ) -> tuple[Mapping[InitialRank, Arrival], FaultRecord | None]:
        """Return every member's arrival, none if one is missing, and the fault that is the round's event."""
        return self._rounds().read_arrivals(iteration, members)

    @operation
    def publish(self, iteration: int, decision: Decision) -> None:
        """Write the decision, unless the round has one."""
        self._rounds().publish(iteration, decision)

    @operation
    def read_decision(self, iteration: int) -> Decision | None:
        """Return the round's decision, None while it has none."""
        return self._rounds().decision(iteration)

    @operation
    def await_event(self, iteration: int) -> None:
        """Wait until the round has its event."""
        self._rounds().wait_event(iteration)

    @operation
    def await_decision(self, iteration: int) -> Decision:
        """Wait for the round's decision; return it."""
        return self._rounds().wait_decision(iteration, self._decided_within)

    @operation
    def set_rendezvous(self, iteration: int, address: str) -> None:
        """Write the rendezvous endpoint of the iteration's process group; "": none, unless one is written already."""
        self._rounds().set_rendezvous(iteration, address)

    @operation
    def await_rendezvous(self, iteration: int) -> tuple[str, int] | None:
        """Wait for that endpoint; return it, None for none."""
        return self._rounds().wait_rendezvous(iteration)

    @operation
    def report_internal_error(self, reason: str) -> None:
        """Report that a machine got an impossible input."""
        log.error("internal error, please report it: %s", reason)


class CallStore(StoreOfRounds):
    """The store of a flow that also leaves the call.

    Args:
        control_store: returns the control store, on the flow's connection.
        size: the initial number of members.
        decided_within: bound of a wait for a decision.
    """

    def __init__(
        self, control_store: Callable[[], ControlStore], size: int, decided_within: timedelta = FOREVER
    ) -> None:
        super().__init__(lambda: control_store().rounds, decided_within)
        self._control_store, self._size = control_store, size

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
