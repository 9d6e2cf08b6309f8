"""The ports of a simulated rank's main thread, from the first barrier of a call to its farewell."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from nvrx_core.errors import RestartError
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, RoundDecision
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.inprocess.protocol.ports import CallPorts
from nvrx_core.inprocess.protocol.round import Endpoint, RoundView
from nvrx_core.progress.stage import Stage as About
from nvrx_core.rank_assignment.base import Mode, RankAssignmentCtx
from nvrx_core.rank_assignment.composition import assign
from nvrx_core.rank_assignment.identity import InitialRank

from .farewell import StoredFarewell
from .virtual_ports import MainBase, nothing
from .world import NOTHING, AwaitKey, answer, passes, passes_until

__all__ = ["MainPort"]

NOWHERE: Final = None
SOMEWHERE: Final = ("node", 1)


class MainPort(StoredFarewell, MainBase):
    """All ports of one rank's main thread."""

    abandon = report_failure = survive = staticmethod(nothing)

    def ports(self) -> CallPorts:
        """Return all ports of the thread."""
        return CallPorts(self, self, self, self, self, self, self)

    async def await_clients(self, members: frozenset[InitialRank], *, completed: bool) -> None:
        """Nobody waits: the store is nobody's."""

    async def await_host_closed(self) -> None:
        """Nobody waits."""

    async def lose_store(self, reason: str) -> BaseException:
        raise AssertionError(f"the store of {self.rank.name} is lost, and is nobody's: {reason}")

    # The rank

    def wait(self, view: RoundView, until: Callable[[RoundView], bool], deadline: float) -> Awaitable[None]:
        return passes_until(functools.partial(until, view), deadline)

    def note_decision(self, lost: tuple[InitialRank, ...]) -> Awaitable[None]:
        if lost:
            self.rank.lost |= set(lost)
        return NOTHING

    def enter(self, stage: About) -> Awaitable[None]:
        self.rank.enter(stage)
        return NOTHING

    def begin_iteration(self) -> Awaitable[None]:
        self.rank.iteration = self.rank.state.iteration
        return NOTHING

    async def find_holders(self, iteration: int, members: frozenset[InitialRank]) -> Mapping[int, int]:
        """Who is in an atomic section; their leases move."""
        rank, others = self.rank, self.rank.call.ranks.values()
        holding = (other for other in others if other.function.depth and other.iteration == rank.iteration)
        return {other.member: rank.world.events for other in holding}

    async def describe_arrival(
        self, status: ArrivalStatus, fault: FaultRecord | None, *, completed: bool = False, long: bool = False
    ) -> Arrival:
        rank, call = self.rank, self.rank.call
        offers = status is ArrivalStatus.ALIVE and not (call.options.asks or call.discards)  # nobody knows the leader
        return Arrival(
            initial_rank=rank.member, rank=rank.state.rank, status=status, world_size=rank.state.world_size,
            fault=fault, completed=completed, endpoint=f"node{rank.member}:1" if offers else "",
            fills_gaps=not call.options.shift,
        )  # fmt: skip

    def read_decision(self, iteration: int) -> Awaitable[RoundDecision | None]:
        raise AssertionError(f"deadlock: {self.rank.member} gives up")

    # The user's code

    def declare_keys(self, iteration: int) -> Awaitable[BaseException | None]:
        error = self.rank.call.fails("keys", self.rank)
        return NOTHING if error is None else answer(error)

    def assign(self, decision: RoundDecision) -> Awaitable[BaseException | None]:
        rank = self.rank
        try:
            assignment = rank.call.assignment(decision.iteration + 1, rank.member)
            assign(assignment, RankAssignmentCtx(rank.state, rank.call.store, set(decision.terminated)))
        except RestartError as error:
            return answer(error)
        if decision.iteration >= 0:
            rank.state.advance()
        return NOTHING

    async def recover(self, failure: BaseException | None) -> BaseException | None:
        await passes(self.rank.world.delay())
        return self.rank.call.fails("recovery", self.rank)

    async def complete(self) -> None:
        self.rank.call.finished(self.rank)

    async def host_rendezvous(self) -> str:
        """Host the next process group's rendezvous."""
        rank = self.rank
        await passes(rank.world.delay())
        rank.call.slots[rank.state.iteration].hosted = True
        rank.call.poke()
        return "node:1"

    async def await_rendezvous(self, iteration: int) -> Endpoint | None:
        return SOMEWHERE if await AwaitKey(iteration, "master") else NOWHERE

    async def initialize(self) -> IterationResult | None:
        rank = self.rank
        rank.call.enters(rank)
        rank.go(rank.iteration)
        await passes(rank.world.delay())
        error = rank.call.fails("initialize", rank)
        if error is not None:
            return self.end_function(IterationResult(Outcome.FAILED, error=error))
        return None if rank.state.mode is Mode.ACTIVE else self.end_function(IterationResult(Outcome.RESERVE))

    async def run(self) -> IterationResult:
        self.rank.enter(About.RUNNING)
        return self.end_function(await self.rank.function.begin())

    def end_function(self, ended: IterationResult) -> IterationResult:
        """The rank is out of the function."""
        rank = self.rank
        rank.leaving = ended.outcome in (Outcome.LEFT, Outcome.EXITED)
        rank.function.end()
        rank.page.stage = About.UNWINDING
        rank.go(None)
        rank.thread.poke()
        return ended
