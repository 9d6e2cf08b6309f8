"""The interface of a control store: `StoreMixin`, and whether a store is created as server or as client.

A custom store is a class that derives from `StoreMixin` and from a torch store. It is created by
`store_factory(**store_kwargs)` in the rank and, as one more client, in the rank's monitor process; a factory that hosts
a server asks `client_only` which of the two it must create.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final, cast

import torch.distributed as dist

from nvrx_core.errors import BarrierOverflow, BarrierTimeout
from nvrx_core.rank_assignment.base import AssignmentState, FrozenState, Mode

__all__ = ["DEFAULT_TIMEOUT", "StoreMixin", "as_client", "client_only"]

_CLIENT: ContextVar[bool] = ContextVar("nvrx_store_client", default=False)
DEFAULT_TIMEOUT: Final = timedelta(seconds=300)
BARRIER_TIMEOUT: Final = timedelta(seconds=60)
CHUNK: Final = timedelta(seconds=0.5)
LEAST: Final = 0.002
"""Seconds; torch takes a timeout below one millisecond for none at all."""
_STATE: Final = (
    "rank", "world_size", "active_rank", "active_world_size", "initial_rank", "initial_world_size", "iteration",
)  # fmt: skip


@contextmanager
def as_client() -> Iterator[None]:
    """Return a context in which new stores connect to a server and host none."""
    token = _CLIENT.set(True)
    try:
        yield
    finally:
        _CLIENT.reset(token)


def client_only() -> bool:
    """Whether a store that is created now must not host a server."""
    return _CLIENT.get()


class StoreMixin:
    """Marks a torch store as usable by the wrapper; derive from it first, then from the torch store.

    Required are `set`, `get`, `add`, `compare_set`, `check`, `multi_get` and `wait(keys, timeout)`, with the semantics
    of torch's stores: `wait` raises `torch.distributed.DistStoreError`, or `TimeoutError`, after the timeout;
    any other failure of the store is a `RuntimeError` or an `OSError`. `delete_key` keeps the store from growing. Two
    more are used where a store has them: `clone()` opens one more connection, and `cut()` ends, from another thread,
    all waits on this one.

    Its own operations are for custom rank assignments, in which the ranks exchange facts (`ctx.store`).
    """

    @property
    def critical_ranks(self) -> Sequence[int]:
        """The initial ranks that host the store: their loss ends the store and the job, so they exit last."""
        return ()

    def forget(self, prefix: str) -> bool:
        """Delete all keys that begin with `prefix`; False when the store cannot."""
        return self.forget_except(prefix, ())

    def forget_except(self, prefix: str, keys: Collection[str]) -> bool:
        """Delete all keys that begin with `prefix`, except these; False when the store cannot."""
        return False

    def send_state(self, state: AssignmentState | FrozenState, rank: int | None = None) -> None:
        """Send the state of a rank to the others, by default the state's own rank; its exception is not sent."""
        fields = {name: getattr(state, name) for name in _STATE} | {"mode": state.mode.name}
        cast(dist.Store, self).set(f"state_{state.rank if rank is None else rank}", json.dumps(fields))

    def get_states(self, ranks: Iterable[int]) -> list[AssignmentState]:
        """Wait for the states of these ranks, and read them."""
        found = map(json.loads, self._read("state", ranks))
        return [AssignmentState(**{**fields, "mode": Mode[fields["mode"]]}) for fields in found]

    def send_key(self, key: Any, rank: int) -> None:
        """Send a fact about a rank to the others; any JSON value."""
        cast(dist.Store, self).set(f"key_{rank}", json.dumps(key))

    def get_keys(self, ranks: Iterable[int]) -> list[Any]:
        """Wait for the facts about these ranks, and read them; a tuple comes back as a list."""
        return list(map(json.loads, self._read("key", ranks)))

    def _read(self, kind: str, ranks: Iterable[int]) -> list[bytes]:
        names = [f"{kind}_{rank}" for rank in ranks]
        return cast(dist.Store, self).multi_get(names) if names else []

    def barrier(  # noqa: PLR0917 (the documented order)
        self,
        ranks: Iterable[int] | str,
        group_name: Any = "",
        rendezvous_count: Any = 0,
        timeout: timedelta = BARRIER_TIMEOUT,
        timeout_chunk: timedelta = CHUNK,
    ) -> None:
        """Wait until `rendezvous_count` ranks have called this.

        Args:
            ranks: the ranks that arrive by this call. A string is the key of torch's own barrier, whose further
                arguments are the world size and the timeout.
            group_name: the barrier's name; each barrier needs its own.
            rendezvous_count: the number of ranks to wait for.
            timeout: how long to wait for the others.
            timeout_chunk: how long to wait at a time; between two waits the main thread executes bytecode, a sign of
                life.

        Raises:
            BarrierTimeout: when the others do not arrive in time.
            BarrierOverflow: when more ranks arrive than expected.
        """
        if isinstance(ranks, str):
            super().barrier(ranks, group_name, rendezvous_count)  # type: ignore[misc]
            return
        store, last = cast(dist.Store, self), f"barrier_{group_name}:all"
        arrived = store.add(f"barrier_{group_name}:arrived", len(list(ranks)))
        if arrived > rendezvous_count:
            text = f"{arrived} ranks at barrier {group_name!r}, which is for {rendezvous_count}"
            raise BarrierOverflow(text, barrier=group_name, arrived=arrived, expected=rendezvous_count)
        if arrived == rendezvous_count:
            store.set(last, "1")
        if not _waited(store, last, timeout, timeout_chunk):
            text = f"not all of {rendezvous_count} ranks came to barrier {group_name!r} within {timeout}"
            seconds = timeout.total_seconds()
            raise BarrierTimeout(text, barrier=group_name, expected=rendezvous_count, seconds=seconds)


def _waited(store: dist.Store, key: str, timeout: timedelta, chunk: timedelta) -> bool:
    """Whether the key was written within the timeout."""
    deadline = time.monotonic() + timeout.total_seconds()
    while (left := deadline - time.monotonic()) > 0:
        try:
            store.wait([key], min(chunk, timedelta(seconds=max(left, LEAST))))
            return True
        except (dist.DistStoreError, TimeoutError):
            continue
    return False
