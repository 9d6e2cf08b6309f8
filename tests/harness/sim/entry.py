"""The entry of a simulated rank into a call: the shipped `Join`, on the control store of the job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.inprocess.coordination.joining import JoinRequest, _carry_out, join_for_dead
from nvrx_core.inprocess.protocol.join import BY, EXPIRED, Claim, Expired, Join, Joined, Wait
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.progress.fields import ProgressField
from nvrx_core.progress.stage import Stage as About

from .world import passes, passes_until

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["Entry"]

WITHIN: Final = 5.0
"""Seconds within which all ranks enter; longer than any of them is late or paused."""


class _Fields(dict[Any, int]):
    """The fields of the progress page that an entry writes."""

    def __init__(self, world_size: int) -> None:
        super().__init__({ProgressField.CLAIMED: 0, ProgressField.GENERATION: 0})
        self.world_size = world_size


class Entry:
    """The entry of one rank.

    Args:
        rank: the rank.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank, self.fields = rank, _Fields(rank.call.size)
        self.terms = json.dumps({BY: rank.name})

    async def run(self) -> None:
        """Join the others, and begin; or give up after a while, as they do."""
        rank, hosting = self.rank, self.rank.call.hosting
        if hosting is not None and not (await hosting.connects(rank)):
            return
        try:
            step = await self._join()
        except StoreFailure:
            rank.lose_call()
            return
        rank.world.note(rank.name, type(step).__name__, -1)
        if isinstance(step, Expired):
            rank.give_up()
            return
        self.fields[ProgressField.GENERATION] = step.generation + 1
        rank.page.stage = About.STARTING
        rank.wake_monitor()
        rank.begin()

    async def _join(self) -> Joined | Expired:
        rank, call = self.rank, self.rank.call
        join = Join(call.size, self._incarnation(), terms=self.terms, unique=True)
        step: Any = join.start()
        until = rank.world.now + WITHIN
        while not isinstance(step, Joined | Expired):
            if isinstance(step, Wait):
                step = join.decided(step.generation, (await self._verdict(step.generation, until)))
                continue
            if isinstance(step, Claim):
                self.fields[ProgressField.CLAIMED] = step.generation + 1
            await passes(rank.world.delay())
            step = _carry_out(call.control, call.keys, join, step, member=rank.member)
            call.poke()
        return step

    async def _verdict(self, generation: int, until: float) -> str:
        call = self.rank.call
        key = call.keys.verdict(generation)
        await passes_until(lambda: call.store_is_closed() or call.control.has([key]), until)
        verdict = call.control.put_once(key, f"{EXPIRED}nobody")
        call.poke()
        return verdict.decode()

    def complete_for_dead(self) -> bool:
        """What the monitor process does for a rank that has died on entry; returns whether there is a generation."""
        call = self.rank.call
        entrant = JoinRequest(self.rank.member, restarts=False, terms=self.terms, incarnation=self._incarnation())
        keys = join_for_dead(call.control, call.keys, self.fields, entrant)  # type: ignore[arg-type]
        call.poke()
        return keys is not None

    def _incarnation(self) -> str:
        return f"host/{self.rank.process}/{self.rank.call.number}"
