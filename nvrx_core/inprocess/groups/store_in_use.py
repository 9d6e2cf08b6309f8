"""The TCP store that a thread waits in, found by the objects that its frames refer to.

A store that was made before the call is known to its user only. While a thread waits in one, a frame refers to it:
directly, by a prefix store, or by an object's attribute.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch.distributed as dist

__all__ = ["store_in_use"]

DEPTH: Final = 3
"""Levels below the locals: an object, its attributes, and what these refer to."""
MAX_OBJECTS: Final = 2_000
"""Objects after which the search ends: a millisecond."""
MAX_CONTAINER: Final = 100
_NO_PARTS: Final = (
    types.ModuleType, types.CodeType, types.FrameType, types.FunctionType, type, str, bytes, int, float,
)  # fmt: skip


def store_in_use(thread: int, port: int) -> dist.TCPStore | None:
    """Return a TCP store with its server at `port` that the frames of a thread refer to; None where there is none.

    Args:
        thread: `threading.get_ident()` of a thread that runs no bytecode.
        port: the port of the server.
    """
    return next((store for store in _stores(_named(thread)) if store.port == port), None)


def _named(thread: int) -> Iterator[object]:
    """Yield what the frames' local and global names refer to, those of the innermost frame first."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield from list(frame.f_locals.values())
        yield from [frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals]
        frame = frame.f_back


def _stores(level: Iterable[object]) -> Iterator[dist.TCPStore]:
    """Yield the TCP stores that the objects refer to, level by level; no user code runs."""
    seen = dict[int, object]()
    for _ in range(DEPTH + 1):
        new = {id(each): each for each in level if id(each) not in seen}
        seen |= new
        yield from filter(None, map(_tcp_store, new.values()))
        if len(seen) > MAX_OBJECTS:
            return
        level = [part for each in new.values() for part in _parts(each)]


def _tcp_store(found: Any) -> dist.TCPStore | None:
    while issubclass(type(found), dist.PrefixStore):
        found = found.underlying_store
    return found if issubclass(type(found), dist.TCPStore) else None


def _parts(held: object) -> list[Any]:
    if issubclass(type(held), _NO_PARTS):
        return []
    parts = gc.get_referents(held)
    return parts if len(parts) <= MAX_CONTAINER else []
