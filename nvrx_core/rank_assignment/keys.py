"""Keys: the group of each rank, and the exchange of keys between the ranks. Pure.

A stage that needs keys declares them, and they are sent with the round's barrier. If the stage runs after a user's own
assignment or is called by it, the ranks exchange the keys through the round's store instead.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable
from datetime import timedelta
from typing import Any, Final, Protocol, cast

from nvrx_core.errors import ParameterError, ParameterTypeError, RankAssignmentError
from nvrx_core.rank_assignment.base import FrozenState, RankAssignment, RankAssignmentCtx
from nvrx_core.rank_assignment.snapshot import RankKeys, columns_of, spread

__all__ = ["KeyFunction", "KeyOrFn", "Keyed"]

LONGEST: Final = 64
"""The maximum length of a key in characters; a digest replaces the end of a longer one."""

KeyOrFn = Hashable | Callable[[Any], Hashable] | Callable[[int, int], Hashable]


class Facts(Protocol):
    """A user's own store with which an assignment is tried out; it has the operations of `StoreMixin` alone."""

    def send_key(self, key: Any, rank: int, /) -> object:
        """Tell the others the keys of a rank."""

    def get_keys(self, ranks: list[int], /) -> Iterable[Iterable[str]]:
        """Return the keys of these ranks."""


class KeyFunction:
    """The key of a rank as text: a constant, or the result of a user's function.

    Args:
        key_or_fn: the key, f(state), or the older f(rank, world_size). A function that accepts both signatures is
            called with the state; two keys are equal if their texts are.

    Raises:
        TypeError: when it is neither hashable nor callable.
        ValueError: when the function takes neither one argument nor two.
    """

    def __init__(self, key_or_fn: KeyOrFn) -> None:
        if not (isinstance(key_or_fn, Hashable) or callable(key_or_fn)):
            raise ParameterTypeError("key_or_fn", key_or_fn, "Hashable or Callable")
        self.key_or_fn = key_or_fn
        self._older = callable(key_or_fn) and _takes_rank_and_world_size(key_or_fn)

    def __call__(self, state: FrozenState) -> str:
        """Return the rank's key.

        Raises:
            TypeError: when the function's result is not hashable.
        """
        key: Any = self.key_or_fn
        if callable(key):
            key = key(state.rank, state.world_size) if self._older else key(state)
        try:
            hash(key)
        except TypeError:
            raise ParameterTypeError("the key of key_or_fn", key, "Hashable", "return str(key), or a tuple") from None
        return _bounded(str(key))


def _bounded(text: str) -> str:
    """Return the text, or the beginning of a long text and a digest of the whole, which all ranks can compare."""
    if len(text) <= LONGEST:
        return text
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{text[: LONGEST - len(digest) - 1]}~{digest}"


def _takes_rank_and_world_size(function: Callable[..., object]) -> bool:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a C function without a signature
        return False
    for arguments in (1, 2):
        try:
            signature.bind(*range(arguments))
        except TypeError:
            continue
        return arguments == 2
    raise ParameterError("key_or_fn", function, "callable as f(state) or f(rank, world_size)")


class Keyed(RankAssignment):
    """A stage that needs the keys of all ranks."""

    @abstractmethod
    def key_functions(self, iteration: int) -> tuple[KeyFunction, ...]:
        """Return the functions that each rank evaluates before the barrier of `iteration`; -1 is the first barrier."""

    def columns(self, ctx: RankAssignmentCtx, timeout: timedelta, iteration: int = 0) -> tuple[RankKeys, ...]:
        """Return the keys of all ranks, from the snapshot or else from the store.

        Raises:
            RankAssignmentError: when not all ranks have sent their keys within `timeout`, or not equally many.
        """
        declared = ctx.snapshot and ctx.snapshot.keys.get(self)
        if declared:
            return declared
        state = ctx.state.freeze()
        own = tuple(function(state) for function in self.key_functions(iteration))
        columns = _exchange(ctx, type(self).__name__, own, timeout)
        if len(columns) != len(own):
            text = f"{type(self).__name__}: not all ranks have {len(own)} keys, as this one has"
            raise RankAssignmentError(text, rank=state.rank, world_size=state.world_size)
        return columns


def _exchange(ctx: RankAssignmentCtx, name: str, own: tuple[str, ...], timeout: timedelta) -> tuple[RankKeys, ...]:
    """Exchange keys through the store: each rank writes its own; the last one writes the collected keys for all.

    Every rank counts its exchanges in the round, so the n-th exchange of one rank is the n-th of all ranks.
    """
    store, size, vacant = ctx.store, ctx.state.world_size, ctx.terminated_ranks
    if not hasattr(store, "add"):
        return _exchange_facts(ctx, own)
    turn = f"exchange/{store.add(f'exchanges/{ctx.state.initial_rank}', 1)}"
    living = [rank for rank in range(size) if rank not in vacant]
    if ctx.state.rank not in vacant:
        store.set(f"{turn}/{ctx.state.rank}", json.dumps(own))
        if store.add(f"{turn}/told", 1) == len(living):
            rows = [tuple(json.loads(store.get(f"{turn}/{rank}"))) for rank in living]
            store.set(f"{turn}/all", json.dumps(columns_of(rows)))
    try:
        store.wait([f"{turn}/all"], timeout)
    except RuntimeError as error:
        raise RankAssignmentError(
            f"{name}: not all of {len(living)} ranks sent their keys within {timeout.total_seconds():g} s",
            rank=ctx.state.rank, world_size=size,
        ) from error  # fmt: skip
    return tuple(spread(column, size, vacant) for column in json.loads(store.get(f"{turn}/all")))


def _exchange_facts(ctx: RankAssignmentCtx, own: tuple[str, ...]) -> tuple[RankKeys, ...]:
    """Exchange keys through a store that has no counters, and that knows those of the lost ranks, too."""
    store = cast(Facts, ctx.store)
    store.send_key(own, ctx.state.rank)
    return tuple(zip(*store.get_keys(list(range(ctx.state.world_size))), strict=True))
