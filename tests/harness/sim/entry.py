"""The entry of a simulated rank into a call: the shipped `Join`, on the control store of the job."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.inprocess.coordination.joining import JoinOperations, JoinRequest, join_for_dead
from nvrx_core.inprocess.protocol.join import BY, EXPIRED, Expired, Join, Joined
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.progress.fields import ProgressField
from nvrx_core.progress.stage import Stage as About

from .virtual_ports import EntryPage
from .world import passes, passes_until

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["Entry"]

WITHIN: Final = 5.0
"""Seconds within which all ranks enter; longer than any of them is late or paused."""


class Entry:
    """The entry of one rank.

    Args:
        rank: the rank.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank, self.fields = rank, EntryPage(rank.call.size)
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
        call, port = self.rank.call, _JoinPort(self, self.rank.world.now + WITHIN)
        end = await Join(port, port, call.size, self._incarnation(), terms=self.terms, unique=True).run()
        assert isinstance(end, Joined | Expired), end
        return end

    def complete_for_dead(self) -> bool:
        """What the monitor process does for a rank that has died on entry; returns whether there is a generation."""
        call = self.rank.call
        join_request = JoinRequest(self.rank.member, restarts=False, terms=self.terms, incarnation=self._incarnation())
        keys = join_for_dead(call.control, call.keys, self.fields, join_request)  # type: ignore[arg-type]
        call.poke()
        return keys is not None

    def _incarnation(self) -> str:
        return f"host/{self.rank.process}/{self.rank.call.number}"


class _JoinPort:
    """The shipped operations of `Join`, each after a delay.

    Args:
        entry: of the rank that joins.
        until: when it has waited for long enough, virtual seconds.
    """

    def __init__(self, entry: Entry, until: float) -> None:
        self.rank: Rank = entry.rank
        self.until, call = until, self.rank.call
        self.operations = JoinOperations(call.control, call.keys, self.rank.member, entry.fields)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def carry_out(*args: Any) -> Any:
            if name == "claim":  # before the delay, as it is on the page then
                self.operations._page[ProgressField.CLAIMED] = args[0] + 1
            await passes(self.rank.world.delay())
            answer = getattr(JoinOperations, name).__wrapped__(self.operations, *args)
            self.rank.call.poke()
            return answer

        return carry_out

    async def await_verdict(self, generation: int) -> str:
        call = self.rank.call
        key = call.keys.verdict(generation)
        await passes_until(lambda: call.store_is_closed() or call.control.has([key]), self.until)
        verdict = call.control.put_once(key, f"{EXPIRED}nobody")
        call.poke()
        return verdict.decode()
