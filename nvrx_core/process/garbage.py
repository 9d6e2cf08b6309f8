"""Garbage collection between iterations: it frees the cycles of the ended iteration at a bounded cost.

A full collection visits every object: 60 to 700 ms where torch and a model are loaded. Objects that exist on entry, and
modules that the first iteration imports, live as long as the process, so they are frozen (`gc.freeze`) and not visited
again.

Objects that will still die must not be frozen. A model and its optimizer die with the frames of the function, without a
collection, unless they are part of a cycle or referenced from outside. The models and optimizers in the frames are
therefore watched by weak references, each by itself: an optimizer may be part of a cycle that its model is not. When
all of them are dead, there is nothing to collect, and the remaining objects are frozen. When one is alive, a full
collection follows; one that survives it is referenced from outside, and nothing is frozen: Python's own collector frees
it once that reference is dropped.

An exception may refer to what it is about: to a trainer, a batch. While it is still needed, what it refers to is alive,
and a collection is in vain. It is postponed until the exception is released.
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

__all__ = ["Garbage", "collect_garbage", "collect_postponed", "freeze_on_entry", "postpone_collection", "watch_frames"]

MAX_CONTAINER: Final = 200
"""Elements of the largest container that is searched."""
MIN_DEPTH: Final = 2
"""Levels below the frames that are always searched: an attribute is two levels down."""
MAX_OBJECTS: Final = 4_000
"""Objects after which the search stops: some milliseconds."""
_CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)
_PLAIN: Final = (str, bytes, int, float, complex, types.NoneType)
_MODULE: Final = type.__dict__["__module__"].__get__
"""The module of a class; an attribute of the class might run code of a metaclass."""
_NO_PARTS: Final = (types.ModuleType, types.CodeType, types.FrameType, type)


@functools.cache
def freeze_on_entry() -> None:
    """Freeze all objects, once per process before the first call; only young garbage is freed first."""
    gc.collect(1)
    gc.freeze()


class Garbage:
    """The garbage of the iterations of this process."""

    def __init__(self) -> None:
        self._watched: list[weakref.ref[Any]] = []
        self._held: list[weakref.ref[Any]] = []
        self._frozen = self._postponed = False

    def watch(self, trace: types.TracebackType | None) -> None:
        """Watch the models and optimizers that the frames of a traceback hold, before the frames are cleared."""
        if not self._frozen:
            known = _alive(self._watched)
            self._watched += [weakref.ref(each) for each in _training_objects(trace) if not _is_in(each, known)]

    def postpone(self, errors: Iterable[BaseException]) -> None:
        """Leave the next collection to `collect_postponed` if an exception refers to more than text and numbers."""
        self._postponed = any(map(_refers_to_objects, errors))

    def collect_postponed(self) -> None:
        """Free the garbage of the ended iteration if that was postponed; its exception is released."""
        if self._postponed:
            self._postponed = False
            self.collect()

    def collect(self) -> None:
        """Free the garbage of the ended iteration, after its frames were cleared."""
        if self._postponed:
            return
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
postpone_collection = _garbage.postpone
collect_garbage = _garbage.collect
collect_postponed = _garbage.collect_postponed


def _alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [found for reference in references if (found := reference()) is not None]


def _is_in(wanted: object, found: Iterable[object]) -> bool:
    """Return whether `wanted` is among the objects, by identity: a model may define `__eq__`."""
    return any(wanted is each for each in found)


def _refers_to_objects(error: BaseException) -> bool:
    """Return whether an exception has arguments or attributes that are neither text nor numbers."""
    try:
        attributes = (value for name, value in vars(error).items() if name != "__notes__")  # these are text
        return not all(issubclass(type(each), _PLAIN) for each in (*error.args, *attributes))
    except Exception:  # boundary: a property of the user's exception, which may refer to anything
        return True


def _kinds() -> tuple[type, ...]:
    """Return the classes whose instances are watched, as far as they are imported."""
    names = (("torch.nn", "Module"), ("torch.optim", "Optimizer"))
    return tuple(getattr(sys.modules[module], name) for module, name in names if module in sys.modules)


def _training_objects(trace: types.TracebackType | None) -> list[Any]:
    """Return the models and optimizers reachable from the frames, searched level by level until one of each is found.

    The frames of a training function often refer only to a trainer object or a closure, and to an optimizer by way of
    others than to its model. Further down, the parts of those found lead to no others.
    """
    kinds, level = _kinds(), _held(trace)
    seen, found, depth = dict[int, Any](), list[Any](), 0
    while level and len(seen) < MAX_OBJECTS:
        if depth > MIN_DEPTH and all(any(issubclass(type(each), kind) for each in found) for kind in kinds):
            break
        new = {id(each): each for each in level if id(each) not in seen}
        seen |= new
        found += [each for each in new.values() if issubclass(type(each), kinds)]
        searched = (each for each in new.values() if depth < MIN_DEPTH or not issubclass(type(each), kinds))
        level = [part for each in searched for part in _parts(each)]
        depth += 1
    return found


def _held(trace: types.TracebackType | None) -> list[Any]:
    held = []
    while trace is not None:
        if not _is_own(trace.tb_frame.f_globals.get("__name__")):
            held += gc.get_referents(trace.tb_frame)  # not f_locals, which would keep a copy
        trace = trace.tb_next
    return held


def _is_own(module: object) -> bool:
    """Return whether a module is the wrapper's: its objects lead to every logger and thread, and to no model."""
    return isinstance(module, str) and module.startswith("nvrx_core.")


def _parts(held: object) -> list[Any]:
    """Return the objects that an object refers to, as the interpreter reports them: no user code runs."""
    kind = type(held)
    if kind is types.FunctionType:
        return list(cast(types.FunctionType, held).__closure__ or ())  # not its globals
    if issubclass(kind, _NO_PARTS) or _is_own(_MODULE(kind)):
        return []
    container = next((each for each in _CONTAINERS if issubclass(kind, each)), None)
    is_large = container is not None and cast(Any, container).__len__(held) > MAX_CONTAINER  # as the base class counts
    return [] if is_large else gc.get_referents(held)


def _any_training_object() -> bool:
    """Return whether any training object is not frozen; this visits every object."""
    kinds = _kinds()
    return any(issubclass(kind, kinds) for kind in _all_types())


def _all_types() -> set[type]:
    """Return the types of all objects that are not frozen.

    The list of the objects exists only during one C call, in which no other thread and no callback of a collection
    runs. It may refer to a tuple that another thread is building, and `tuple(...)` there fails with SystemError while a
    second reference exists.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return set(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))
    finally:
        if collects:
            gc.enable()
