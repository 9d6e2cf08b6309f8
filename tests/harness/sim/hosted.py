"""A store that one of the simulated processes hosts: it ends with the process, and each call has one of its own.

When it is closed, each operation on it fails, and so does each wait in it. The rules here model what a shell does then:
the main thread is interrupted by `StoreLost`, or finds the loss itself, and its monitor process bounds its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.errors import StoreLost
from nvrx_core.inprocess.monitor import watch_effects
from nvrx_core.inprocess.protocol import effects
from nvrx_core.inprocess.protocol.effects import Flow, StoreFailure, StoreOperation
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.progress.stage import Stage as About

from .memory_store import SharedStore
from .options import LONG
from .rank_main import end_function
from .running import AT_ONCE, WAITS, WISH, Rules, Running, Waits
from .slots import Slots
from .world import Until

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["HostedRunning", "HostedStore", "Wire", "lose_store"]

CLOSES_WITHIN: Final = 5.0
"""Seconds for which a rank that has completed waits until the host has closed the store."""
LOSS: Final = (StoreFailure, StoreLost)


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


class HostedRunning(Running):
    """A flow whose operations and waits fail once the store is closed.

    Args:
        rank: whose it is.
        flow: has not begun.
        rules: of its effects, where a store outside the ranks is used.
        over: called at its end.
    """

    __slots__ = ()

    def __init__(self, rank: Rank, flow: Flow[Any], rules: Rules, over: Callable[[], None]) -> None:
        super().__init__(rank, flow, {**rules, **HOSTED}, over)

    def send(self, outcome: Any) -> Any:
        """Go on, up to the next wish of the world; a failure as the outcome is raised.

        Raises:
            StopIteration: at the end.
        """
        try:
            return self._next_wish(outcome)
        except LOSS as loss:
            self.rank.ended_by_loss(self, loss)
        except StopIteration:
            pass
        self.over()
        raise StopIteration

    def _next_wish(self, outcome: Any) -> Any:
        loss = outcome if isinstance(outcome, LOSS) else None
        while True:
            if self.part is not None:
                try:
                    return _resumed(self.part, outcome, loss)
                except StopIteration as end:
                    self.part, outcome, loss = None, end.value, None
                except LOSS as raised:
                    self.part, loss = None, raised
            effect = _resumed(self.flow, outcome, loss)
            if type(effect) is StoreOperation:
                return effect
            how, rule = self.rules[type(effect)]
            outcome = loss = None
            try:
                if how == WISH:
                    return rule(self.rank, effect)
                if how == WAITS:
                    self.part = rule(self.rank, effect)
                else:
                    outcome = rule(self.rank, effect)
            except LOSS as raised:
                loss = raised


def _resumed(flow: Flow[Any] | Waits, outcome: Any, loss: Exception | StoreLost | None) -> Any:
    return flow.send(outcome) if loss is None else flow.throw(loss)


def lose_store(rank: Rank) -> None:
    """The store is known to be lost: interrupt the main thread, in the function or where it waits."""
    if not rank.store_lost_at:
        rank.store_lost_at = max(rank.now(), 1e-9)
        rank.wake_monitor()
    function = rank.function
    if not (rank.main.alive and function.armed):
        rank.main.poke()
    elif function.depth:
        rank.world.after(0.005, lambda: lose_store(rank))
    elif not function.wedged:
        rank.world.resume_soon(rank.main, _loss())


def _until(holds: Callable[[], Any], deadline: float = math.inf) -> Waits:
    """Wait for what may hold already."""
    if not holds():
        yield Until(holds, deadline)


def _loss() -> StoreLost:
    return StoreLost("node0", 1)


# The main thread


def _await(rank: Rank, effect: effects.Await) -> Waits:
    yield from _until(lambda: rank.store_lost_at or effect.until(effect.view), effect.deadline)
    if rank.store_lost_at and not effect.until(effect.view):
        raise _loss()


def _run(rank: Rank, _: effects.RunFunction) -> Waits:
    if rank.store_lost_at:
        raise _loss()
    rank.enter(About.RUNNING)
    try:
        ended = yield from rank.function.begin()
    except StoreLost:
        end_function(rank, IterationResult(Outcome.INTERRUPTED))
        raise
    return end_function(rank, ended)


def _lose(rank: Rank, _: effects.LoseStore) -> StoreLost:
    lose_store(rank)
    return _loss()


def _await_clients(rank: Rank, effect: effects.AwaitClients) -> Waits:
    call = rank.call
    if effect.completed:
        yield from _until(lambda: call.membership.have_left(effect.members), rank.now() + LONG)
    else:
        clients = call.ranks.values()
        yield from _until(lambda: all(client.gone or call.membership.have_left([client.member]) for client in clients))


def _await_closed(rank: Rank, _: effects.AwaitHostClosed) -> Waits:
    """Wait until the host, member 0, has closed the store.

    A host that was lost by its silence may live: it closes the store when it learns of that, after an atomic section
    that may outlast the bound of this wait.
    """
    yield from _until(rank.call.store_is_closed, rank.now() + CLOSES_WITHIN)
    if not rank.call.store_is_closed() and 0 not in rank.lost:
        unmarked = [each for each in rank.call.ranks.values() if not rank.call.membership.have_left([each.member])]
        assert any(each.is_dead() for each in unmarked), f"I15: {rank.name} leaves, and the store of its call is there"


def _mark_left(rank: Rank, effect: effects.MarkLeft) -> float:
    rank.call.membership.mark_left(effect.member, silent=effect.silent)
    rank.call.poke()
    return rank.world.delay()


# The monitor process


def _mark_lost(rank: Rank, _: watch_effects.MarkStoreLost) -> None:
    rank.store_lost_at = max(rank.now(), 1e-9)


def _kill(rank: Rank, _: watch_effects.KillWithoutStore) -> None:
    held = rank.function.wedged or rank.function.depth
    assert held or rank.thaws_at, f"I12: {rank.name} is killed without a store, and could leave"
    rank.die(node=False)


HOSTED: Final[Rules] = {
    effects.Await: (WAITS, _await),
    effects.AwaitClients: (WAITS, _await_clients),
    effects.AwaitHostClosed: (WAITS, _await_closed),
    effects.LoseStore: (AT_ONCE, _lose),
    effects.MarkLeft: (WISH, _mark_left),
    effects.RunFunction: (WAITS, _run),
    watch_effects.KillWithoutStore: (AT_ONCE, _kill),
    watch_effects.MarkStoreLost: (AT_ONCE, _mark_lost),
}
"""What differs from the rules of a rank whose store is outside the ranks."""
