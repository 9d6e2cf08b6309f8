"""Garbage between iterations: what the ended one left in cycles is freed, at a price that does not grow.

A full collection looks at every object: 60 to 700 ms where torch and a model are loaded. What exists on entry, and what
the first iteration has imported, stays for good, so it is frozen (`gc.freeze`) and not looked at again.

Nothing may be frozen that is yet to die. A model and its optimizer die with the frames of the function, without any
collection, unless they are part of a cycle or held from outside; so those that the frames held are watched. When all
are gone there is nothing to collect, and the rest is frozen. When one lives on, a full collection follows; one that
outlives even that is held from outside, and nothing is frozen: Python's own collector frees it when it is let go.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import Any, Final, cast

__all__ = ["Garbage", "collect_garbage", "freeze_on_entry", "watch_frames"]

LOOKED_AT: Final = 200
"""Elements of the largest container that is looked at."""
SHALLOW: Final = 2
"""Steps from the frames that are always gone: an attribute is two away."""
SEEN: Final = 4_000
"""Objects after which no step further is gone: some milliseconds."""
_CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)
_NO_PARTS: Final = (types.ModuleType, types.CodeType, types.FrameType, type)


@functools.cache
def freeze_on_entry() -> None:
    """Once a process, before the first call; young garbage is freed first, old garbage is rare and stays."""
    gc.collect(1)
    gc.freeze()


class Garbage:
    """What the iterations of this process leave behind."""

    def __init__(self) -> None:
        self._watched: list[weakref.ref[Any]] = []
        self._held: list[weakref.ref[Any]] = []
        self._frozen = False

    def watch(self, trace: types.TracebackType | None) -> None:
        """Watch the models and optimizers that the frames of a traceback hold, before the frames are cleared."""
        if not self._frozen:
            known = _alive(self._watched)
            self._watched += [weakref.ref(each) for each in _training_objects(trace) if not _is_in(each, known)]

    def collect(self) -> None:
        """Free what the ended iteration has left, once its frames are cleared."""
        if self._frozen:
            gc.collect()
            return
        gc.collect(1)
        held, watched = _alive(self._held), bool(self._watched)
        if not watched or any(not _is_in(each, held) for each in _alive(self._watched)):
            gc.collect()
            self._held = [reference for reference in self._watched if reference() is not None]
        if not _alive(self._watched) and (watched or not _any_training_object()):
            gc.freeze()
            self._frozen = True
        self._watched = [reference for reference in self._watched if reference() is not None]


_garbage = Garbage()
watch_frames = _garbage.watch
collect_garbage = _garbage.collect


def _alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [found for reference in references if (found := reference()) is not None]


def _is_in(wanted: object, found: Iterable[object]) -> bool:
    """By identity: a model may define what it is equal to."""
    return any(wanted is each for each in found)


def _kinds() -> tuple[type, ...]:
    """The classes whose instances are watched, as far as they are loaded."""
    names = (("torch.nn", "Module"), ("torch.optim", "Optimizer"))
    return tuple(getattr(sys.modules[module], name) for module, name in names if module in sys.modules)


def _training_objects(trace: types.TracebackType | None) -> list[Any]:
    """The models and optimizers that the frames hold, themselves or in what they hold, as deep as it takes to find one.

    A function that trains often has no more than a trainer, or a closure, at hand.
    """
    kinds, level = _kinds(), _held(trace)
    seen, found, steps = dict[int, Any](), list[Any](), 0
    while kinds and level and len(seen) < SEEN and (steps <= SHALLOW or not found):
        new = {id(each): each for each in level if id(each) not in seen}
        seen |= new
        found += [each for each in new.values() if issubclass(type(each), kinds)]
        level = [part for each in new.values() for part in _parts(each)]
        steps += 1
    return found


def _held(trace: types.TracebackType | None) -> list[Any]:
    held = []
    while trace is not None:
        held += gc.get_referents(trace.tb_frame)  # not f_locals, which would keep a copy
        trace = trace.tb_next
    return held


def _parts(held: object) -> list[Any]:
    """What an object refers to, asked of the interpreter: no code of the user's runs."""
    kind = type(held)
    if kind is types.FunctionType:
        return list(cast(types.FunctionType, held).__closure__ or ())  # not its globals
    return [] if issubclass(kind, _NO_PARTS) or _size(held) > LOOKED_AT else gc.get_referents(held)


def _size(held: object) -> int:
    """The elements of a container, as its base class counts them."""
    of_kind = (container for container in _CONTAINERS if issubclass(type(held), container))
    return next((cast(Any, container).__len__(held) for container in of_kind), 0)


def _any_training_object() -> bool:
    """Whether there is any that is not frozen; looks at every object."""
    kinds = _kinds()
    return any(issubclass(kind, kinds) for kind in _all_types())


def _all_types() -> set[type]:
    """The types of all objects that are not frozen.

    The list of the objects lives within one call in C, in which no other thread runs, and no callback of a collection:
    it refers to a tuple that another thread is about to build, too, and `tuple(...)` there would fail with SystemError.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return set(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))
    finally:
        if collects:
            gc.enable()
