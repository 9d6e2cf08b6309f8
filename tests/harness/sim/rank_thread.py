"""The port of a simulated rank's monitor thread, and of what interrupts its main thread."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from nvrx_core.inprocess.interruption import policy
from nvrx_core.inprocess.interruption.policy import FireReason, InterruptPolicy, ThreadSample
from nvrx_core.inprocess.protocol.round import RoundPhase

from .farewell import StoredFarewell
from .virtual_ports import ThreadBase, nothing
from .world import NOTHING, AwaitKey, passes, passes_until

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["ThreadPort"]


class ThreadPort(StoredFarewell, ThreadBase):
    """The rounds, and the end of the function."""

    async def await_event(self, iteration: int) -> None:
        rank = self.rank
        cause = (await AwaitKey(iteration, "event"))[0]
        rank.cause, rank.noticed = cause, iteration
        done = cause is not None or rank.rounds.view.round.phase is not RoundPhase.OPEN
        assert done, f"I11: a round is completed that {rank.member} has not completed"

    def notice(self, iteration: int) -> Awaitable[None]:
        rank, cause = self.rank, self.rank.cause
        round_ = rank.rounds.view.round
        again = round_.event_written() + round_.event_read(cause)
        assert not again, f"I8: {rank.member} acts twice on an event"
        return NOTHING

    def last_call(self, seconds: float) -> Awaitable[None]:
        return passes(seconds)

    async def interrupt_function(self, reason: str) -> None:
        rank, function = self.rank, self.rank.function
        function.requested = True
        rank.policy = InterruptPolicy(unwind=10.0)
        await policy.begin(rank.policy, MainThreadOf(self.rank), rank.now)
        while function.masked() and not function.out:
            await passes_until(lambda: not function.masked() or function.out)

    def abort_function(self, iteration: int) -> Awaitable[None]:
        rank = self.rank
        rank.aborting = iteration
        assert not rank.function.depth, f"I4: {rank.member}'s collectives are aborted in an atomic section"
        return passes(rank.world.delay())

    def await_out(self) -> Awaitable[None]:
        rank = self.rank
        rank.main.poke()
        return policy.drive(rank.policy, MainThreadOf(rank), rank.now)

    def reset_interrupt(self) -> Awaitable[None]:
        rank = self.rank
        assert rank.decision is not None
        again = rank.rounds.view.round.decided(rank.decision)
        assert not again, f"I8: {rank.member} acts twice on a decision"
        rank.function.reset()
        return NOTHING

    def round_decided(self) -> Awaitable[None]:
        self.rank.main.poke()
        return NOTHING


class MainThreadOf:
    """The main thread of a rank, for what interrupts it."""

    report_stored = report_swallowed = report_deferred = staticmethod(nothing)

    def __init__(self, rank: Rank) -> None:
        self.rank, self.first = rank, True

    async def observe(self) -> ThreadSample:
        self.first = False
        function = self.rank.function
        out = function.out or not function.armed
        return ThreadSample(out, function.masked(), function.raised, function.alive)

    def fire(self, why: FireReason) -> Awaitable[None]:
        rank = self.rank
        assert rank.function.armed, f"I4: {rank.member} is interrupted outside the function"
        assert not rank.function.depth, f"I4: {rank.member} is interrupted in an atomic section"
        rank.function.signal()
        return NOTHING

    def close_blocked(self) -> Awaitable[None]:
        rank = self.rank
        assert rank.function.armed, f"I4: {rank.member} is unblocked outside the function"
        rank.function.blocked = False
        return NOTHING

    async def await_left(self, deadline: float) -> bool:
        function, first = self.rank.function, self.first
        self.first = False
        if not (function.out or (first and deadline <= self.rank.world.now)):
            await passes_until(lambda: function.out, deadline)
        return function.out

    async def await_unmasked(self) -> bool:
        function = self.rank.function
        await passes_until(lambda: not function.masked() or function.out)
        return function.out
