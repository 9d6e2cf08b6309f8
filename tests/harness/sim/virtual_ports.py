"""The ports of a virtual rank that the simulation and the checker share: what each awaits, whoever carries it out.

An operation on the keys of a round is a wish that the simulation grants after a delay, the checker at any moment. What
concerns nobody but the rank itself is done at once.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, NamedTuple, Protocol

from nvrx_core.fault.exceptions import exit_code
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.monitor.ports import FaultReports, MonitorStore, RankPage, RankPort
from nvrx_core.inprocess.protocol.decision import Arrival, RoundDecision
from nvrx_core.inprocess.protocol.round import (
    Announce,
    CloseCompleted,
    CountArrival,
    CountCompletion,
    Endpoint,
    Publish,
    PutArrival,
    ReadArrivals,
    ReadEvent,
)
from nvrx_core.liveness.peer_progress import PeerProgress
from nvrx_core.rank_assignment.identity import InitialRank

from .slots import LookUp, SayWhere
from .world import NOTHING, AwaitKey, Operation, Passing

__all__ = ["MainBase", "MonitorBase", "MonitorPorts", "Owner", "StorePort", "nothing"]


def nothing(*_: Any, **__: Any) -> Passing:
    """What only the real port does."""
    return NOTHING


class Owner(Protocol):
    """The virtual rank that a port is of."""

    def fault(self, kind: Interruption, exit_code: int = 0) -> FaultRecord:
        """Return a fault of this rank."""


class StorePort:
    """The keys of the rounds: each operation is atomic."""

    def announce(self, iteration: int, fault: FaultRecord) -> Awaitable[FaultRecord | None]:
        return Operation(Announce(fault), iteration)

    def count_completion(self, iteration: int) -> Awaitable[int]:
        return Operation(CountCompletion(), iteration)

    def close_completed(self, iteration: int) -> Awaitable[None]:
        return Operation(CloseCompleted(), iteration)

    def read_event(self, iteration: int) -> Awaitable[FaultRecord | None]:
        return Operation(ReadEvent(), iteration)

    def put_arrival(self, iteration: int, arrival: Arrival) -> Awaitable[None]:
        return Operation(PutArrival(arrival), iteration)

    def count_arrival(self, iteration: int) -> Awaitable[int]:
        return Operation(CountArrival(), iteration)

    def read_arrivals(
        self, iteration: int, members: frozenset[InitialRank]
    ) -> Awaitable[tuple[dict[InitialRank, Arrival], FaultRecord | None]]:
        return Operation(ReadArrivals(members), iteration)

    def publish(self, iteration: int, decision: RoundDecision) -> Awaitable[None]:
        return Operation(Publish(decision), iteration)

    def read_decision(self, iteration: int) -> Awaitable[RoundDecision | None]:
        return Operation(LookUp(), iteration)

    def await_event(self, iteration: int) -> Awaitable[None]:
        return AwaitKey(iteration, "event")

    def await_decision(self, iteration: int) -> Awaitable[RoundDecision]:
        return AwaitKey(iteration, "decision")

    def set_rendezvous(self, iteration: int, address: str) -> Awaitable[None]:
        return Operation(SayWhere(address), iteration)

    def await_rendezvous(self, iteration: int) -> Awaitable[Endpoint | None]:
        return AwaitKey(iteration, "master")


class MainBase(StorePort):
    """What of a main thread's ports only the real ones do."""

    collect_garbage = collect_postponed = round_ended = staticmethod(nothing)
    use_rendezvous = release_groups = terminate = staticmethod(nothing)
    release_iteration = record_fault = report_left = finish_reports = staticmethod(nothing)
    owner: Owner

    async def describe_fault(self, error: BaseException) -> FaultRecord:
        kind = Interruption.EXCEPTION if isinstance(error, Exception) else Interruption.BASE_EXCEPTION
        return self.owner.fault(kind, exit_code(error))

    async def describe_late(self, reason: str) -> FaultRecord:
        return self.owner.fault(Interruption.EXCEPTION)


class MonitorBase(StorePort):
    """What of a monitor process's ports is the same in each virtual world."""

    report_pause = mark_stalled = mark_round_over = renew_connections = disown_page = staticmethod(nothing)
    probe = report_hang = note_stragglers = staticmethod(nothing)
    owner: Owner

    async def describe_stall(self, reason: str, iteration: int) -> FaultRecord:
        return self.owner.fault(Interruption.SOFT_TIMEOUT)

    async def describe_death(self, reason: str | None, since: float | None) -> FaultRecord:
        return self.owner.fault(Interruption.TERMINATED if reason is None else Interruption.HARD_TIMEOUT)

    async def find_progress(self) -> PeerProgress:
        return PeerProgress({})

    async def has_decision(self, iteration: int) -> bool:
        return False

    async def has_event(self, iteration: int) -> bool:
        return False


class MonitorPorts(NamedTuple):
    """The ports of a watch."""

    page: RankPage
    rank: RankPort
    reports: FaultReports
    store: MonitorStore
