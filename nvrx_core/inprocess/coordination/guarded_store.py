"""One connection to the store for the protocol: each of its failures is raised as `StoreFailure`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, TypeVar, cast

import torch.distributed as dist

from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.store.connection import StoreConnection

__all__ = ["BATCH", "FOREVER", "NOTHING", "GuardedStore", "batches", "guard"]

T = TypeVar("T")
BATCH: Final = 256
"""Keys asked for at once. torch's server parses a request anew with each piece of it that comes in, so the time for one
that asks for all keys grows with their square."""
FOREVER: Final = timedelta(days=365)
NOTHING: Final = "-"
"""No key has this text as its value, but `master`, where it says the same."""


_FAILURES: Final = (RuntimeError, OSError, ValueError)


class _Guard:
    """What `guard` returns: one for all, as each operation on the store enters it."""

    __slots__ = ()

    def __enter__(self) -> None:
        return

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, _FAILURES):
            raise StoreFailure((str(error).splitlines() or [repr(error)])[0]) from error


_GUARD: Final = _Guard()


def guard() -> AbstractContextManager[None]:
    """Return a context that raises `StoreFailure` if the store fails, or has a value that no rank has written."""
    return _GUARD


def batches(whole: list[T]) -> Iterator[list[T]]:
    """Yield the items in batches of `BATCH`."""
    return (whole[first : first + BATCH] for first in range(0, len(whole), BATCH))


class GuardedStore:
    """A torch store on one connection.

    Args:
        store: a connection that can be opened again, or a store on one; a blocking call blocks all others on it.
        chunk: how long a wait blocks at most before it checks `stopped`; None for a store whose socket can be cut
            instead.

    Attributes:
        stopped: waits end; checked between two chunks.
        appends: the store can append to a key.
    """

    def __init__(self, store: StoreConnection | dist.Store, chunk: timedelta | None = None) -> None:
        self.store, self.chunk, self.stopped = store, chunk, False
        self.appends = bool(getattr(store, "has_extended_api", bool)())

    def put(self, key: str, value: str) -> None:
        """Write the value."""
        with guard():
            self.store.set(key, value)

    def append(self, key: str, value: str) -> None:
        """Append the value to that of the key."""
        with guard():
            cast(Any, self.store).append(key, value)

    def count(self, key: str, amount: int = 1) -> int:
        """Add to a counter; return the sum."""
        with guard():
            return self.store.add(key, amount)

    def put_once(self, key: str, value: str) -> bytes:
        """Write the value unless the key has one; return the present value."""
        return self.replace(key, "", value)

    def replace(self, key: str, before: str, value: str) -> bytes:
        """Write the value if the key has the expected one; return the present value."""
        with guard():
            return bytes(self.store.compare_set(key, before, value))

    def try_get(self, key: str) -> bytes | None:
        """Return the value of the key, None if there is none.

        It takes one request, while torch's `get` takes two, because it waits for the key first.
        """
        value = self.replace(key, NOTHING, NOTHING)
        return None if value == NOTHING.encode() else value

    def has(self, keys: list[str]) -> bool:
        """Return whether all the keys exist; unlike `try_get`, it ends no other wait for a missing key."""
        with guard():
            return all(self.store.check(part) for part in batches(keys))

    def read_all(self, keys: list[str]) -> list[bytes]:
        """Return the values of the keys, all of which exist."""
        with guard():
            return [bytes(value) for part in batches(keys) for value in self.store.multi_get(part)]

    def wait(self, keys: list[str], timeout: timedelta) -> bool:
        """Block until all the keys exist; return False after the timeout."""
        with guard():
            try:
                self.store.wait(keys, timeout)
            except (dist.DistStoreError, TimeoutError):
                return False
        return True

    def wait_signal(self, key: str, timeout: timedelta = FOREVER) -> None:
        """Block until the store reports that the key exists.

        torch's server reports each `compare_set` of the key, even one that writes nothing: no process may use `try_get`
        on a key that is waited for by this method.
        """
        if self.chunk is None:
            with guard():
                self.store.wait([key], timeout)
            return
        while not self.stopped:
            if self.wait([key], self.chunk):
                return
        raise StoreFailure("the wait was stopped")

    def wait_value(self, key: str, timeout: timedelta = FOREVER) -> bytes:
        """Block until the key has a value; return it."""
        while True:
            self.wait_signal(key, timeout)
            if (value := self.try_get(key)) is not None:
                return value
            if self.has([key]):  # it has come since, or says `NOTHING`
                return self.replace(key, NOTHING, NOTHING)

    def delete(self, keys: Iterable[str]) -> bool:
        """Delete the keys, if the store can; return whether any of them existed."""
        try:
            return bool(sum(map(self.store.delete_key, keys)))
        except (RuntimeError, OSError):
            return False

    def forget(self, prefix: str, stay: Collection[str] = ()) -> bool:
        """Delete all keys that begin with `prefix` at once, except some; return False if the store cannot."""
        forget = getattr(self.store, "forget_except" if stay else "forget", None)
        with guard():
            return forget is not None and bool(forget(prefix, stay) if stay else forget(prefix))

    def listed(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`; empty if the store cannot list its keys."""
        list_keys = getattr(self.store, "list_keys", None)
        try:
            return [key for key in list_keys() if key.startswith(prefix)] if list_keys is not None else []
        except (RuntimeError, OSError):
            return []
