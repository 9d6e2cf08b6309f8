"""A store that one of the simulated processes hosts: it ends with the process, and each call has one of its own.

When it is closed, each operation on it fails, and so does each wait in it. The ports here model what the real ones do:
the main thread is interrupted by `StoreLost`, or finds the loss itself, and its monitor process bounds its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.errors import StoreLost
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.inprocess.protocol.round import RoundView
from nvrx_core.progress.stage import Stage as About
from nvrx_core.rank_assignment.identity import InitialRank

from .memory_store import SharedStore
from .options import LONG
from .rank_main import MainPort
from .slots import Slots
from .world import passes_until

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["HostedMain", "HostedStore", "Wire", "lose_store"]

CLOSES_WITHIN: Final = 5.0
"""Seconds for which a rank that has completed waits until the host has closed the store."""


class HostedStore(SharedStore):
    """The store of one call.

    Attributes:
        opened: its host listens.
        closed: its host has ended.
    """

    def __init__(self) -> None:
        super().__init__(forgets=False)
        self.opened = self.closed = False

    def check(self, keys: list[str]) -> bool:
        self._answer()
        return super().check(keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self._answer()
        return super().compare_set(key, expected, desired)

    def add(self, key: str, amount: int) -> int:
        self._answer()
        return super().add(key, amount)

    def set(self, key: str, value: str) -> None:
        self._answer()
        super().set(key, value)

    def _answer(self) -> None:
        if self.closed:
            raise ConnectionError("the store is closed")


class Wire(Mapping[int, Slots]):
    """The rounds of a call for those that ask its store.

    Args:
        store: the store.
        slots: its rounds.
    """

    def __init__(self, store: HostedStore, slots: Mapping[int, Slots]) -> None:
        self.store, self.slots = store, slots

    def __getitem__(self, iteration: int) -> Slots:
        if self.store.closed:
            raise StoreFailure("the store is closed")
        return self.slots[iteration]

    def __iter__(self) -> Iterator[int]:
        return iter(self.slots)

    def __len__(self) -> int:
        return len(self.slots)


def lose_store(rank: Rank) -> None:
    """The store is known to be lost: interrupt the main thread, in the function or where it waits."""
    if not rank.page.store_lost_at:
        rank.page.store_lost_at = max(rank.now(), 1e-9)
        rank.wake_monitor()
    function = rank.function
    if not (rank.main.alive and function.armed):
        rank.main.poke()
    elif function.depth:
        rank.world.after(0.005, lambda: lose_store(rank))
    elif not function.wedged:
        rank.world.resume_soon(rank.main, _loss())


async def _until(holds: Callable[[], Any], deadline: float = math.inf) -> None:
    """Wait for what may hold already."""
    if not holds():
        await passes_until(holds, deadline)


def _loss() -> StoreLost:
    return StoreLost("node0", 1)


class HostedMain(MainPort):
    """The ports of a main thread that the loss of the store reaches."""

    async def wait(self, view: RoundView, until: Callable[[RoundView], bool], deadline: float) -> None:
        rank = self.rank
        await _until(lambda: rank.page.store_lost_at or until(view), deadline)
        if rank.page.store_lost_at and not until(view):
            raise _loss()

    async def run(self) -> IterationResult:
        rank = self.rank
        if rank.page.store_lost_at:
            raise _loss()
        rank.enter(About.RUNNING)
        try:
            ended = await rank.function.begin()
        except StoreLost:
            self.end_function(IterationResult(Outcome.INTERRUPTED))
            raise
        return self.end_function(ended)

    async def lose_store(self, reason: str) -> StoreLost:
        lose_store(self.rank)
        return _loss()

    async def await_clients(self, members: frozenset[InitialRank], *, completed: bool) -> None:
        rank, call = self.rank, self.rank.call
        if completed:
            await _until(lambda: call.membership.have_left(members), rank.now() + LONG)
        else:
            clients = call.ranks.values()
            await _until(lambda: all(client.gone or call.membership.have_left([client.member]) for client in clients))

    async def await_host_closed(self) -> None:
        """Wait until the host, member 0, has closed the store.

        A host that was lost by its silence may live: it closes the store when it learns of that, after an atomic
        section that may outlast the bound of this wait.
        """
        rank, call = self.rank, self.rank.call
        await _until(call.store_is_closed, rank.now() + CLOSES_WITHIN)
        if not call.store_is_closed() and 0 not in rank.lost:
            unmarked = [each for each in call.ranks.values() if not call.membership.have_left([each.member])]
            assert any(each.is_dead() for each in unmarked), f"I15: {rank.name} leaves, and its store is there"
