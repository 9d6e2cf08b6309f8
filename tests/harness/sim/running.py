"""What the simulated ports of a rank share: the store's rounds, and what only the real ports do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.actions import (
    Announce,
    CloseCompleted,
    CountArrival,
    CountCompletion,
    Publish,
    PutArrival,
    ReadArrivals,
    ReadEvent,
)
from nvrx_core.inprocess.protocol.decision import Arrival, Decision
from nvrx_core.inprocess.protocol.ports import CallPorts

from .slots import LookUp, SayWhere
from .world import NOTHING, AwaitKey, Operation, Passing, passes

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["MainBase", "RoundPort", "StorePort", "nothing"]


def nothing(*_: Any, **__: Any) -> Passing:
    """What only the real port does."""
    return NOTHING


class RoundPort:
    """The actions of a round's machines: each is one operation on the store."""

    def announce(self, iteration: int, fault: FaultRecord) -> Operation:
        return Operation(Announce(fault), iteration)

    def count_completion(self, iteration: int) -> Operation:
        return Operation(CountCompletion(), iteration)

    def close_completed(self, iteration: int) -> Operation:
        return Operation(CloseCompleted(), iteration)

    def read_event(self, iteration: int) -> Operation:
        return Operation(ReadEvent(), iteration)

    def put_arrival(self, iteration: int, arrival: Arrival) -> Operation:
        return Operation(PutArrival(arrival), iteration)

    def count_arrival(self, iteration: int) -> Operation:
        return Operation(CountArrival(), iteration)

    def read_arrivals(self, iteration: int, members: frozenset[int]) -> Operation:
        return Operation(ReadArrivals(members), iteration)

    def publish(self, iteration: int, decision: Decision) -> Operation:
        return Operation(Publish(decision), iteration)

    async def report_internal_error(self, reason: str) -> None:
        """Report an input that a machine does not have."""
        raise AssertionError(f"internal error: {reason}")


class MainBase(RoundPort):
    """What of a main thread's ports only the real ones do."""

    log_waiting = collect_garbage = collect_postponed = round_ended = staticmethod(nothing)
    use_rendezvous = release_groups = terminate = staticmethod(nothing)
    report_announced = clear_frames = report_failure = release_failure = staticmethod(nothing)
    report_left = stop_housekeeping = staticmethod(nothing)

    def ports(self) -> CallPorts:
        """All ports of the thread."""
        return CallPorts(*(self,) * 8)  # type: ignore[arg-type]


class StorePort(RoundPort):
    """The keys of a simulated rank's call, in virtual time.

    Args:
        rank: the rank.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def read_decision(self, iteration: int) -> Operation:
        return Operation(LookUp(), iteration)

    def await_decision(self, iteration: int) -> AwaitKey:
        return AwaitKey(iteration, "decision")

    def set_rendezvous(self, iteration: int, address: str) -> Operation:
        return Operation(SayWhere(bool(address)), iteration)

    async def mark_left(self, member: int, *, silent: bool = False) -> None:
        rank = self.rank
        rank.call.membership.mark_left(member, silent=silent)
        if rank.call.hosting is not None:
            rank.call.poke()
        await passes(rank.world.delay())

    async def count_out(self, iteration: int, living: int) -> None:
        self.rank.call.deletion.count_out(iteration, living, self.rank.call.size)
        await passes(self.rank.world.delay())

    async def delete_if_over(self) -> None:
        self.rank.call.deletion.delete_if_over(self.rank.call.size)
