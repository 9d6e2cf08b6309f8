"""Children of `os.fork` inside the wrapped function: they are no ranks.

A child has copies of everything the rank has, but none of its threads. So the wrapper's objects become inert in it
before any other code runs there (`os.register_at_fork`): no store, page or monitor process of the rank hears of it, and
nothing interrupts it. The function's end in the child passes by the wrapper: it ends the child as it would without one.

What the child holds of the wrapper is never destroyed: the destructor of a store's server waits for a thread that only
the rank has.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["EndedInChild", "Forkable", "inert_in_children", "keep_for_good", "run_in_rank_only"]


class Forkable(Protocol):
    """What a child of `os.fork` must not use as the rank does."""

    def disown(self) -> None:
        """Become inert; called in the child, before anything else runs there."""


class EndedInChild(BaseException):
    """How the function has ended in a child; passes through the wrapper without being looked at.

    Args:
        result: what the function returned.
        error: what it raised.
    """

    def __init__(self, result: Any = None, error: BaseException | None = None) -> None:
        super().__init__()
        self.result, self.error = result, error


@contextmanager
def inert_in_children(owner: Forkable) -> Iterator[None]:
    """Have the owner become inert in every child that is forked meanwhile."""
    _register()
    _live.add(owner)
    try:
        yield
    finally:
        _live.discard(owner)


def run_in_rank_only(run: Callable[[Callable[[], Any]], Any], function: Callable[[], Any]) -> Any:
    """Return `run(function)`; in a child that the function has forked, what the function returns or raises there."""
    try:
        return run(functools.partial(_call, function, os.getpid()))
    except EndedInChild as ended:
        child = ended
    if child.error is not None:
        raise child.error
    return child.result


def keep_for_good(*owners: object) -> None:
    """Let objects live until the process is gone, the end of the interpreter included."""
    for owner in owners:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


_live: set[Forkable] = set()


def _call(function: Callable[[], Any], rank_pid: int) -> Any:
    try:
        result = function()
    except BaseException as error:  # boundary: in a child, the wrapper does not look at it
        if os.getpid() != rank_pid:
            raise EndedInChild(error=error) from None
        raise
    if os.getpid() != rank_pid:
        raise EndedInChild(result)
    return result


@functools.cache
def _register() -> None:
    os.register_at_fork(after_in_child=_disown_all)


def _disown_all() -> None:
    while _live:
        _live.pop().disown()
