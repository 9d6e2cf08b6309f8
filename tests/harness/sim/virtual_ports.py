"""What the virtual ranks of the simulation and of the checker share: their ports await the same, whoever grants it.

An operation on the keys of a round is a wish that the simulation grants after a delay, the checker at any moment. What
concerns nobody but the rank itself is done at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, NamedTuple

from nvrx_core.fault.exceptions import exit_code
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.monitor.ports import FaultReports, MonitorStore, RankPage, RankPort
from nvrx_core.inprocess.protocol.decision import Arrival, RoundDecision
from nvrx_core.inprocess.protocol.outcome import IterationResult
from nvrx_core.inprocess.protocol.round import Endpoint, Rounds, RoundTimeouts
from nvrx_core.liveness.peer_progress import PeerProgress
from nvrx_core.progress.fields import ProgressField
from nvrx_core.rank_assignment.base import AssignmentState
from nvrx_core.rank_assignment.identity import InitialRank

from .slots import Slots
from .world import NOTHING, AwaitKey, Operation, Passing

__all__ = [
    "EntryPage", "MainBase", "MonitorBase", "MonitorPorts", "StorePort", "ThreadBase", "VirtualPage", "VirtualRank",
    "nothing",
]  # fmt: skip


def nothing(*_: Any, **__: Any) -> Passing:
    """What only the real port does."""
    return NOTHING


class VirtualRank(ABC):
    """A rank in a virtual world, which its ports are of.

    Args:
        member: its initial rank.
        members: those of all.
        timeouts: of its rounds.

    Attributes:
        iteration: as its page has it.
        decision: the last one that its monitor thread has acted on.
    """

    def __init__(self, member: InitialRank, members: frozenset[InitialRank], timeouts: RoundTimeouts) -> None:
        self.member, self.rounds = member, Rounds(member, members, timeouts)
        self.state = AssignmentState(member, len(members))
        self.iteration = -1
        self.decision: RoundDecision | None = None

    @abstractmethod
    def fault(self, kind: Interruption, exit_code: int = 0) -> FaultRecord:
        """Return a fault of this rank."""

    def learns(self, decision: RoundDecision) -> None:
        """The monitor thread learns a decision, and acts on no earlier one."""
        round_, old = self.rounds.view.round, self.decision
        stale = old is not None and round_.decided(old)
        assert not stale, f"I8: {self.member} acts in {round_.iteration} on the decision of the round before"
        self.decision = decision


class VirtualPage:
    """What the progress page of a virtual rank never tells."""

    inside, rendezvous, collectives, exited = False, 0, 0, None


class EntryPage(dict[Any, int]):
    """The fields of a progress page that an entry into a call reads and writes."""

    def __init__(self, world_size: int, claimed: int = 0) -> None:
        super().__init__({ProgressField.CLAIMED: claimed, ProgressField.GENERATION: 0})
        self.world_size = world_size


class StorePort:
    """The keys of the rounds: each operation is atomic."""

    def announce(self, iteration: int, fault: FaultRecord) -> Awaitable[FaultRecord | None]:
        return Operation(Slots.announce, iteration, fault)

    def count_completion(self, iteration: int) -> Awaitable[int]:
        return Operation(Slots.count_completion, iteration)

    def close_completed(self, iteration: int) -> Awaitable[None]:
        return Operation(Slots.close_completed, iteration)

    def read_event(self, iteration: int) -> Awaitable[FaultRecord | None]:
        return Operation(Slots.read_event, iteration)

    def put_arrival(self, iteration: int, arrival: Arrival) -> Awaitable[None]:
        return Operation(Slots.put_arrival, iteration, arrival)

    def count_arrival(self, iteration: int) -> Awaitable[int]:
        return Operation(Slots.count_arrival, iteration)

    def read_arrivals(
        self, iteration: int, members: frozenset[InitialRank]
    ) -> Awaitable[tuple[dict[InitialRank, Arrival], FaultRecord | None]]:
        return Operation(Slots.read_arrivals, iteration, members)

    def publish(self, iteration: int, decision: RoundDecision) -> Awaitable[None]:
        return Operation(Slots.publish, iteration, decision)

    def read_decision(self, iteration: int) -> Awaitable[RoundDecision | None]:
        return Operation(Slots.look_up, iteration)

    def await_event(self, iteration: int) -> Awaitable[None]:
        return AwaitKey(iteration, "event")

    def await_decision(self, iteration: int) -> Awaitable[RoundDecision]:
        return AwaitKey(iteration, "decision")

    def set_rendezvous(self, iteration: int, address: str) -> Awaitable[None]:
        return Operation(Slots.say_where, iteration, address)

    def await_rendezvous(self, iteration: int) -> Awaitable[Endpoint | None]:
        return AwaitKey(iteration, "master")


class MainBase(StorePort):
    """What of a main thread's ports only the real ones do."""

    collect_garbage = collect_postponed = round_ended = staticmethod(nothing)
    use_rendezvous = release_groups = terminate = staticmethod(nothing)
    release_iteration = record_fault = report_left = finish_reports = staticmethod(nothing)
    owner: VirtualRank

    async def describe_fault(self, ended: IterationResult) -> FaultRecord:
        error = ended.error
        assert error is not None
        kind = Interruption.EXCEPTION if isinstance(error, Exception) else Interruption.BASE_EXCEPTION
        return self.owner.fault(kind, exit_code(error))

    async def describe_late(self, reason: str) -> FaultRecord:
        return self.owner.fault(Interruption.EXCEPTION)


class ThreadBase(StorePort):
    """What of a monitor thread's ports is the same in each virtual world."""

    event_received = decision_received = staticmethod(nothing)
    owner: VirtualRank

    async def await_decision(self, iteration: int) -> RoundDecision:
        decision: RoundDecision = await AwaitKey(iteration, "decision")
        self.owner.learns(decision)
        return decision


class MonitorBase(StorePort):
    """What of a monitor process's ports is the same in each virtual world."""

    report_pause = mark_stalled = mark_round_over = renew_connections = disown_page = staticmethod(nothing)
    probe = report_hang = note_stragglers = staticmethod(nothing)
    owner: VirtualRank

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
