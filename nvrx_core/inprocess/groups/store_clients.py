"""Stores that the function makes: a client of `TCPStore` connects in attempts that a signal ends.

torch waits in C++ for a server that is not there yet, and connects again and again when one is gone, as it is when its
rank was lost. Between two short attempts a signal reaches the main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist

from nvrx_core.store.endpoint import StoreConnectionError, await_listener

__all__ = ["STORE_TIMEOUT", "apart", "connect", "given_arguments", "meet", "says_who"]

ARGUMENTS: Final = (
    "world_size", "is_master", "timeout", "wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv",
)  # fmt: skip
"""Those of torch's `TCPStore` after host and port, in order."""
MEET_ATTEMPT: Final = timedelta(seconds=1)
CONNECT_ATTEMPT: Final = timedelta(seconds=5)
"""How long a client of a store may be out of reach of a signal."""
STORE_TIMEOUT: Final = timedelta(seconds=300)
"""torch's default."""


def given_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a `TCPStore` after host and port, by name."""
    return dict(zip(ARGUMENTS, args, strict=False)) | kwargs


def connect(init: Callable[..., None], given: dict[str, Any], place: tuple[str, int], *, meeting: bool) -> None:
    """Become a client of a store, in short attempts.

    Args:
        init: the constructor, with store, host and port bound.
        given: its further arguments.
        place: host and port.
        meeting: it is the store that the wrapper hosts: all ranks are clients, and none needs to wait for the others.

    Raises:
        torch.distributed.DistNetworkError, torch.distributed.DistStoreError: when there is no server in time.
    """
    timeout: timedelta = given.get("timeout", STORE_TIMEOUT)
    given = {"is_master": False, "wait_for_workers": False} if meeting else given
    attempt = min(timeout, MEET_ATTEMPT if meeting else CONNECT_ATTEMPT)
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        _await_server(*place, timeout)
        try:
            init(**{**given, "timeout": attempt})
            return
        except (dist.DistNetworkError, dist.DistStoreError):
            if time.monotonic() >= deadline:
                raise


def _await_server(host_name: str, port: int, timeout: timedelta) -> None:
    """Wait for a store's server in Python: torch's own wait for one that is not there yet ends by no signal."""
    try:
        await_listener(host_name, port, timeout)
    except StoreConnectionError as error:
        raise dist.DistNetworkError(str(error)) from None


def says_who(url: str) -> bool:
    """Whether the URL of a rendezvous says rank and world size."""
    return {"rank", "world_size"} <= parse_qs(urlsplit(url).query).keys()


def meet(
    place: tuple[str, int], url: str, timeout: timedelta = STORE_TIMEOUT, **_: object
) -> Iterator[tuple[dist.Store, int, int]]:
    """A rendezvous at a place where a store is hosted for all ranks, by the rank and the world size in the URL."""
    query = parse_qs(urlsplit(url).query)
    rank, world_size = (int(query[name][-1]) for name in ("rank", "world_size"))
    yield dist.TCPStore(*place, is_master=False, timeout=timeout), rank, world_size


def apart(found: Iterator[tuple[dist.Store, int, int]], earlier: int) -> Iterator[tuple[dist.Store, int, int]]:
    """The same rendezvous, with keys that are not those of the `earlier` ones of the iteration."""
    for store, rank, world_size in found:
        yield (dist.PrefixStore(f"default-group-{earlier}", store) if earlier else store), rank, world_size
