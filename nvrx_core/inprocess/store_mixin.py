"""What makes a store one of the wrapper's: `StoreMixin`, and which of its two sides a store is made for.

A user's own store is a class that derives from `StoreMixin` and from a torch store. It is made by
`store_factory(**store_kwargs)` in the rank and, as one more client, in the rank's monitor process; `client_only` tells
a factory that hosts a server which of the two it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Final

__all__ = ["DEFAULT_TIMEOUT", "StoreMixin", "as_client", "client_only"]

_CLIENT: ContextVar[bool] = ContextVar("nvrx_store_client", default=False)
DEFAULT_TIMEOUT: Final = timedelta(seconds=300)


@contextmanager
def as_client() -> Iterator[None]:
    """Stores made inside connect to a server and host none."""
    token = _CLIENT.set(True)
    try:
        yield
    finally:
        _CLIENT.reset(token)


def client_only() -> bool:
    """Whether a store that is made now must not host a server."""
    return _CLIENT.get()


class StoreMixin:
    """Marks a torch store as usable by the wrapper; derive from it first, then from the torch store.

    Needed are `set`, `get`, `add`, `compare_set`, `check`, `multi_get` and `wait(keys, timeout)`, with the meaning they
    have for torch's stores: `wait` raises `torch.distributed.DistStoreError`, or `TimeoutError`, when the time is over.
    `delete_key` keeps the store from growing. Two more are used where a store has them: `clone()` makes one more
    connection, and `cut()` ends, from another thread, whatever waits on this one.
    """

    @property
    def critical_ranks(self) -> Sequence[int]:
        """The initial ranks that host the store: their loss ends it, and with it the job; they leave last."""
        return ()

    def forget(self, prefix: str) -> bool:
        """Delete all keys that begin with `prefix`; False when the store cannot."""
        return False
