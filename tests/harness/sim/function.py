"""The user's function of a simulated rank, and how it takes interruptions: its behaviour is random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome

from .options import LONG
from .world import passes, passes_until

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["Failed", "Function", "Leaves"]


class Failed(Exception):
    """What a function raises when it fails."""


class Leaves(BaseException):
    """What it raises to leave."""


class Function:
    """The function of one rank, in one iteration after the other.

    Args:
        rank: whose it is.

    Attributes:
        injected: what it raises next.
        hangs: it hangs until it is interrupted; `hung_at` says since when.
        wedges: only its monitor process can end it; `wedged`: it has come to that.
        armed: an interrupt is raised in it.
        requested: it is to end.
        raising: an interrupt ends it.
        out: the main thread has left it.
        blocked: no signal reaches it.
        depth: of atomic sections.
        raised: how many interrupts were raised.
        swallows: how many it still swallows.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.injected: BaseException | None = None
        self.hangs = self.wedges = self.wedged = False
        self.hung_at: float | None = None
        self.reset()

    def reset(self) -> None:
        """No interruption is requested any more."""
        self.armed = self.requested = self.raising = self.alive = self.out = self.blocked = False
        self.depth = self.raised = self.swallows = 0

    async def begin(self) -> IterationResult:
        """Run it: meet the others, as `init_process_group` does, and work."""
        self.armed = True
        if self.requested:
            return IterationResult(Outcome.INTERRUPTED)
        met = self.rank.has_met
        if not met():
            await passes_until(lambda: self._disturbed() or met())
        if self.raising:
            return IterationResult(Outcome.INTERRUPTED)
        return (await self._work()) if met() else self._end_by_injected()

    def end(self) -> None:
        """The main thread has left it."""
        self.armed, self.out = False, True
        self.hangs, self.hung_at = False, None

    def masked(self) -> bool:
        """It is in an atomic section."""
        return self.depth > 0

    def signal(self) -> None:
        """The interrupt signal reaches the main thread."""
        if not self.requested or not self.armed or self.depth or self.alive or self.blocked or self.wedged:
            return
        self.raised += 1
        if self.swallows:
            self.swallows -= 1
            return
        self.alive = self.raising = True
        self.rank.main.poke()

    async def _work(self) -> IterationResult:
        """Work until no more faults are due, or something happens."""
        rank = self.rank
        world, options = rank.world, rank.call.options
        rng, early = world.rng, world.rng.random() < 0.1
        while early or world.now < rank.call.active_until:
            early = False
            if self.hangs or self.wedges:
                self.hung_at, self.wedged = world.now, self.wedges
                await passes_until(lambda: self.raising)
                return IterationResult(Outcome.INTERRUPTED)
            if options.stubborn and rng.random() < options.stubborn:
                self.blocked, self.swallows = rng.random() < 0.5, rng.randint(0, 3)
            if options.atomic and rng.random() < options.atomic:
                if self.requested:
                    return IterationResult(Outcome.INTERRUPTED)
                await self._section()
                if self.requested:
                    return IterationResult(Outcome.INTERRUPTED)
            await passes_until(self._disturbed, world.now + rng.uniform(0.0, 0.05))
            if self.requested and (self.blocked or self.swallows):  # only an interrupt ends this
                await passes_until(lambda: self.raising)
            if self.raising:
                await passes(rng.uniform(0.0, 0.002))
                return IterationResult(Outcome.INTERRUPTED)
            if self.injected is not None:
                return self._end_by_injected()
        return IterationResult(Outcome.RETURNED)

    async def _section(self) -> None:
        rank, options = self.rank, self.rank.call.options
        self.depth = 1
        first = rank.member == rank.iteration == rank.call.number == 0
        hold = options.hold and first and options.completion >= LONG
        await passes(rank.world.rng.uniform(0.0, 0.01) + (1.5 * LONG if hold else 0.0))
        self.depth = 0
        rank.thread.poke()

    def _end_by_injected(self) -> IterationResult:
        error, self.injected = self.injected, None
        assert error is not None
        if isinstance(error, SystemExit):
            return IterationResult(Outcome.EXITED, error=error)
        return IterationResult(Outcome.FAILED if isinstance(error, Exception) else Outcome.LEFT, error=error)

    def _disturbed(self) -> bool:
        return self.raising or self.injected is not None
