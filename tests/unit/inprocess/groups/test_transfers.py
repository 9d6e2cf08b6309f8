"""How long a rank waits for a transfer, its own or those of others: as long as anything moves."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from nvrx_core.inprocess.groups import transfers
from nvrx_core.inprocess.groups.transfers import Movement


class Store:
    """A counter, which another rank may raise between two looks.

    Args:
        raises: for how many looks it does.
        then: is called at the look after them.
    """

    def __init__(self, raises: int = 0, then: Callable[[], None] = lambda: None) -> None:
        self.count, self.raises, self.then = 0, raises, then

    def add(self, key: str, number: int) -> int:
        if self.raises:
            self.raises -= 1
            self.count += 1
        else:
            self.then()
        self.count += number
        return self.count


def test_a_wait_ends_when_nothing_moves_on_any_rank() -> None:
    done = threading.Event()
    with pytest.raises(TimeoutError, match=r"no rank has sent or received anything for 0\.04 s"):
        Movement(Store, 0.04).wait(done.wait)
    done.set()


def test_a_wait_goes_on_while_another_rank_moves_something() -> None:
    done = threading.Event()
    store = Store(raises=30, then=done.set)
    Movement(lambda: store, 0.04).wait(done.wait)
    assert store.count == 30


def test_what_this_rank_moves_is_told_to_the_others() -> None:
    done, moved = threading.Event(), itertools.count()

    def move() -> None:
        movement.move()
        if next(moved) == 30:
            done.set()

    store = Store(then=move)
    movement = Movement(lambda: store, 0.04)
    movement.wait(done.wait)
    assert store.count >= 29


def test_what_is_moved_in_short_waits_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now, store = [100.0], Store()
    monkeypatch.setattr(transfers.time, "monotonic", lambda: now[0])
    movement = Movement(lambda: store, 80.0)

    def move() -> None:
        now[0] += 3.0
        movement.move()

    for _ in range(20):
        movement.wait(move)
    assert store.count == 5, "every 10 s, at the end of a wait"


def test_a_wait_raises_what_the_call_raises() -> None:
    def fail() -> None:
        raise RuntimeError("connection closed")

    with pytest.raises(RuntimeError, match="connection closed"):
        Movement(Store, 60.0).wait(fail)
