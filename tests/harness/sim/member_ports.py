"""The ports of a member's flows: what takes another member is a request, all else is done at once."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.errors import RankAssignmentError, RankDiscarded, RestartAbort, StoreLost
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.interruption.policy import FireReason, ThreadSample
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, RoundDecision
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.inprocess.protocol.ports import CallPorts
from nvrx_core.inprocess.protocol.round import RoundView
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.base import RankAssignmentCtx
from nvrx_core.rank_assignment.composition import assign
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.rank_assignment.moves import ShiftRanks

from . import requests
from .job import fault_of
from .virtual_ports import MainBase, MonitorBase, StorePort, ThreadBase, VirtualRank, nothing

if TYPE_CHECKING:
    from .member import Member

__all__ = ["PORTS", "MainPort", "MonitorPort", "OneTry", "ThreadPort"]

NO_STORE: Any = None  # the built-in assignments ask nothing of it


class Unfit(Exception):
    """What a plug-in raises."""


class _StorePort(StorePort):
    """The store, where the checker lets each operation happen.

    Args:
        member: whose it is.
    """

    def __init__(self, member: Member) -> None:
        self.member = member
        self.owner: VirtualRank = member

    def mark_left(self, member: InitialRank, *, silent: bool = False) -> Awaitable[None]:
        return requests.MarkLeft(member, silent)

    def count_out(self, iteration: int, living: int) -> Awaitable[None]:
        return requests.CountOut(iteration, living)

    def delete_if_over(self) -> Awaitable[None]:
        return requests.DeleteIfOver()


class MainPort(_StorePort, MainBase):
    """The ports of a main thread."""

    complete = staticmethod(nothing)

    def ports(self) -> CallPorts:
        """Return all ports of the thread."""
        return CallPorts(self, self, self, self, self, self, self)

    # The rank

    def wait(self, view: RoundView, until: Callable[[RoundView], bool], deadline: float) -> Awaitable[None]:
        return requests.Await(view, until, deadline)

    async def enter(self, stage: Stage) -> None:
        self.member.stage = stage

    def note_decision(self, lost: tuple[InitialRank, ...]) -> Awaitable[None]:
        return requests.LoseMembers(lost)

    def begin_iteration(self) -> Awaitable[None]:
        return requests.BeginIteration()

    async def find_holders(self, iteration: int, members: frozenset[InitialRank]) -> dict[int, int]:
        return {}

    async def describe_arrival(
        self, status: ArrivalStatus, fault: FaultRecord | None, *, completed: bool = False, long: bool = False
    ) -> Arrival:
        member, config = self.member, self.member.config
        offers = status is ArrivalStatus.ALIVE and not (config.asks or config.discards)
        return Arrival(
            initial_rank=member.member, rank=member.state.rank, status=status, world_size=member.state.world_size,
            fault=fault, endpoint=f"node{member.member}:1" if offers else "",
        )  # fmt: skip

    # The user's code

    async def declare_keys(self, iteration: int) -> BaseException | None:
        return self._fails_in("keys", iteration)

    async def assign(self, decision: RoundDecision) -> BaseException | None:
        member, k, state = self.member, decision.iteration, self.member.state
        if (k + 1, member.member) in member.config.errors:
            return RankAssignmentError("injected", rank=state.rank, world_size=state.world_size)
        if (k + 1, member.member) in member.config.discards:
            return RankDiscarded("injected", rank=state.rank)
        if member.config.whole and decision.lost:
            member.given_code = decision.exit.exit_code if decision.exit is not None else 0
            return RestartAbort("injected")
        assign(ShiftRanks(), RankAssignmentCtx(state, NO_STORE, set(decision.terminated)))
        gone = [number for i, number in member.config.discards if i == k + 1 and number in member.known]
        state.rank -= sum(number < member.member for number in gone)
        state.world_size -= len(gone)
        state.active_rank = state.rank
        if k >= 0:
            state.advance()
        return None

    async def recover(self, failure: BaseException | None) -> BaseException | None:
        return self._fails_in("recover", self.member.state.iteration)

    def host_rendezvous(self) -> Awaitable[str]:
        return requests.HostRendezvous()

    async def initialize(self) -> IterationResult | None:
        error = self._fails_in("initialize", self.member.state.iteration)
        return IterationResult(Outcome.FAILED, error=error) if error is not None else None

    def run(self) -> Awaitable[IterationResult]:
        return requests.RunFunction()

    def _fails_in(self, plug_in: str, iteration: int) -> BaseException | None:
        return Unfit() if (plug_in, iteration, self.member.member) in self.member.config.fails else None

    # Its exit

    def report_failure(self, cause: FaultRecord | None) -> Awaitable[None]:
        return requests.ReportFailure() if self.member.config.reports else nothing()

    def survive(self, error: BaseException | None, cause: FaultRecord | None) -> Awaitable[None]:
        return self.report_failure(cause)

    async def abandon(self, error: BaseException) -> None:
        self.member.abandoned, self.member.stage = True, Stage.EXITED_ABNORMALLY

    async def lose_store(self, reason: str) -> StoreLost:
        return StoreLost("node0", 1)

    def await_clients(self, members: frozenset[InitialRank], *, completed: bool) -> Awaitable[None]:
        return requests.AwaitClients(members, completed)

    def await_host_closed(self) -> Awaitable[None]:
        return requests.AwaitHostClosed()


class ThreadPort(_StorePort, ThreadBase):
    """The ports of a monitor thread."""

    notice = last_call = abort_function = round_decided = staticmethod(nothing)

    def interrupt_function(self, reason: str) -> Awaitable[None]:
        return requests.InterruptFunction(reason)

    def await_out(self) -> Awaitable[None]:
        return requests.AwaitOut()

    async def reset_interrupt(self) -> None:
        self.member.requested, self.member.section = False, 0


class OneTry:
    """A main thread that is out of its function as soon as it was interrupted.

    Attributes:
        fires: it was interrupted.
    """

    close_blocked = report_stored = report_swallowed = report_deferred = staticmethod(nothing)

    def __init__(self, *, masked: bool) -> None:
        self.masked, self.fires = masked, False

    async def observe(self) -> ThreadSample:
        return ThreadSample(out=False, masked=self.masked, raised=0, alive=False)

    async def fire(self, why: FireReason) -> None:
        self.fires = True

    async def await_left(self, deadline: float) -> bool:
        return True

    async def await_unmasked(self) -> bool:
        return True


class MonitorPort(_StorePort, MonitorBase):
    """The ports of a monitor process."""

    interrupt = terminate = kill = kill_without_store = move_lease = staticmethod(nothing)

    # The rank

    def sleep(self, until: float) -> Awaitable[bool]:
        return requests.Sleep(until)

    async def sample(self, out_by: float) -> ProgressSample:
        return ProgressSample(iteration=self.member.iteration, stage=self.member.stage, alive_at=math.inf)

    async def mark_store_lost(self) -> None:
        self.member.lost_store = True

    # Its faults

    async def describe_silence(self, member: InitialRank) -> FaultRecord:
        return fault_of(member, -1, Interruption.UNRESPONSIVE)

    # The store

    async def read_leases(self, members: Collection[InitialRank]) -> dict[InitialRank, str]:
        return {}

    async def has_left(self, member: InitialRank) -> bool:
        return member == self.member.member and self.member.left

    async def join_for_dead(self) -> bool:
        joined: bool = await requests.JoinForDead() if self.member.stage is Stage.OUTSIDE else True
        return joined


PORTS: Final = (MainPort, ThreadPort, MonitorPort)
