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
"""Objects of one frame after which its search ends: a millisecond."""
MAX_FRAMES: Final = 32
"""The innermost frames, which are searched."""
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
    found = (store for frame in _innermost(thread) for store in _stores(_named(frame)))
    return next((store for store in found if store.port == port), None)


def _innermost(thread: int) -> Iterator[types.FrameType]:
    frame = sys._current_frames().get(thread)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _named(frame: types.FrameType) -> list[object]:
    """Return what the frame's local names refer to, and the global ones that its code uses."""
    names = [name for name in frame.f_code.co_names if name in frame.f_globals]
    return [*frame.f_locals.values(), *map(frame.f_globals.__getitem__, names)]


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
