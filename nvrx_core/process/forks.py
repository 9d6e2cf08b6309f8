"""Children of `os.fork` inside the wrapped function: they are not ranks.

A child has copies of all objects of the rank, but none of its threads. The wrapper's objects therefore become inert in
the child before any other code runs there (`os.register_at_fork`): the child does not use the rank's store, page or
monitor process, and is not interrupted. When the function returns or raises in the child, the wrapper passes the result
through, and the child ends as it would without the wrapper.

The child never destroys its copies of the wrapper's objects: the destructor of a store's server waits for a thread that
exists only in the rank.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Protocol

__all__ = [
    "CleanupStack", "EndedInChild", "Forkable", "disown_in_children", "forks_waiting", "inert_in_children",
    "keep_for_good", "keep_in_children", "run_in_rank_only",
]  # fmt: skip

LONGEST_IMPORT: Final = 2.0
"""Seconds for which a fork waits while another thread imports."""


class Forkable(Protocol):
    """An object that a child of `os.fork` must not use as the rank does."""

    def disown(self) -> None:
        """Become inert; called in the child, before anything else runs there."""


class EndedInChild(BaseException):
    """The outcome of the function in a child; the wrapper passes it through.

    Args:
        result: the return value of the function.
        error: the exception of the function.
    """

    def __init__(self, result: Any = None, error: BaseException | None = None) -> None:
        super().__init__()
        self.result, self.error = result, error


class CleanupStack(ExitStack):
    """Releases the resources of a call in reverse order; a child of `os.fork` disowns them, and releases nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._child = ExitStack()

    def in_child(self, disown: Callable[[], object]) -> None:
        """Register a function that a child of `os.fork` calls."""
        self._child.callback(disown)

    def disown(self) -> None:
        """Disown all resources of the call, in such a child; others are kept alive and not used again."""
        keep_for_good(self.pop_all())
        self._child.close()


@contextmanager
def inert_in_children(owner: Forkable) -> Iterator[None]:
    """Disown `owner` in every child that is forked inside the context."""
    disown_in_children(owner)
    try:
        yield
    finally:
        keep_in_children(owner)


def disown_in_children(owner: Forkable) -> None:
    """Disown `owner` in every child that is forked from here on."""
    _register()
    _live.add(owner)


def keep_in_children(owner: Forkable) -> None:
    """Leave `owner` alone in children that are forked from here on."""
    _live.discard(owner)


def run_in_rank_only(run: Callable[[], Any]) -> Any:
    """Return `run()`; where that raises `EndedInChild`, return or raise the outcome of the function in the child."""
    try:
        return run()
    except EndedInChild as ended:
        child = ended
    if child.error is not None:
        raise child.error
    return child.result


def keep_for_good(*owners: object) -> None:
    """Keep objects alive until the process exits, also during interpreter shutdown."""
    for owner in owners:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


@contextmanager
def forks_waiting() -> Iterator[None]:
    """Let forks wait while a thread that is not the main one imports, for `LONGEST_IMPORT` at most.

    In a child, a module that another thread was about to import stays locked for ever.
    """
    _register_importing()
    with _importing:
        yield


_live: set[Forkable] = set()
_importing: Final = threading.Lock()
_forking = threading.local()


@functools.cache
def _register() -> None:
    os.register_at_fork(after_in_child=_disown_all)


@functools.cache
def _register_importing() -> None:
    os.register_at_fork(before=_await_import, after_in_parent=_forked, after_in_child=_forked)


def _await_import() -> None:
    _forking.waits = _importing.acquire(timeout=LONGEST_IMPORT)


def _forked() -> None:
    if getattr(_forking, "waits", False):
        _forking.waits = False
        _importing.release()


def _disown_all() -> None:
    while _live:
        _live.pop().disown()
