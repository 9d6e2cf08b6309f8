"""The life of a store that is hosted by a simulated process: one for each call, in the process of its member 0."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from nvrx_core.inprocess.protocol.ports import StoreFailure

from .hosted import HostedStore, Wire
from .slots import Slots
from .world import passes_until

if TYPE_CHECKING:
    from .call import Call
    from .rank import Rank

__all__ = ["Hosting"]

CONNECTS_WITHIN: Final = 5.0
"""Seconds for which a rank waits until somebody listens."""
READ_WITHIN: Final = 2.0
"""Seconds for which the host of a call that is not entered by all waits until the others have read so."""


class Hosting:
    """The store of one call.

    Args:
        call: the call.
    """

    def __init__(self, call: Call) -> None:
        self.call, self.world, self.store = call, call.world, HostedStore()
        self.slots = self.store.rounds.setdefault(call.keys.prefix, defaultdict(Slots))
        self.wire = Wire(self.store, self.slots)
        self.store.opened = not call.number

    async def connects(self, rank: Rank) -> bool:
        """A rank opens its store, or connects to it, unless that of the call before is still there."""
        before = self.call.schedule.calls[self.call.number - 1].hosting
        assert before is not None
        if not before.store.closed:
            await passes_until(lambda: before.store.closed)
            rank.lose_call()
            return False
        if rank.member == 0:
            self.store.opened = True
            self.call.poke()
        elif not self.store.opened:
            await passes_until(lambda: self.store.opened, self.world.now + CONNECTS_WITHIN)
        if not self.store.opened:
            rank.give_up()
        return self.store.opened

    def ended(self, rank: Rank) -> None:
        """A process has left the call, or is dead."""
        if rank.member:
            self.call.poke()
        elif rank.expired and not rank.is_dead():
            self.world.after(READ_WITHIN, self.close)
        else:
            self.close()

    def close(self) -> None:
        """The store is gone: who waits in it is told."""
        if self.store.closed:
            return
        self.world.note("the store of call", "is closed", self.call.number)
        self.store.closed = True
        for slots in self.slots.values():
            for waiting in slots.waiting.values():
                for task, turn in waiting:
                    if task.awaits(turn):
                        self.world.resume_soon(task, StoreFailure("the store is closed"), turn=turn)
            slots.waiting.clear()
        for rank in self.call.ranks.values():
            rank.poke()
