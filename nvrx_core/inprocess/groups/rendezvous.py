"""The rendezvous of the function: the stores that it creates, and the rank and world size that it passes itself.

A client of `TCPStore` connects in short attempts, so that a signal can end it: torch waits in C++ for a server that
does not exist yet, and reconnects repeatedly when the server is lost with its rank. Between two short attempts, the
main thread handles signals.

Rank and world size change in a restart that loses a rank, and a function that keeps those of its start, as the
tutorials write them, would wait for ranks that do not exist. Without RANK and WORLD_SIZE, a process that means to be
one of several is a job of its own, whose restarts the others would not follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist

from nvrx_core.errors import RestartAbort
from nvrx_core.settings.environment import missing_variables, rank_and_world_size
from nvrx_core.store.endpoint import StoreConnectionError, await_listener

__all__ = ["STORE_TIMEOUT", "GivenRanks", "connect", "given_arguments", "ranks_in", "rendezvous_at", "with_prefix"]


class GivenRanks:
    """Checks the rank and the world size that the function passes; created on entry to a call.

    Args:
        rank, world_size: those of the call on entry.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._on_entry, self._missing = (rank, world_size), missing_variables()

    def check(self, rank: int | None, world_size: int | None, iteration: int) -> None:
        """Check those that the function has passed, in the URL of a rendezvous or with a store.

        Args:
            rank: the rank that it has passed; None if it has left it out.
            world_size: the same for the world size.
            iteration: the present one.

        Raises:
            RestartAbort: when they are not those of this iteration; another iteration would not mend it.
        """
        given = {"rank": rank, "world_size": world_size}
        call = f"init_process_group({', '.join(f'{name}={each}' for name, each in given.items() if each is not None)})"
        if self._missing[:2] == ["RANK", "WORLD_SIZE"] and world_size is not None and world_size > 1:
            raise RestartAbort(
                f"{call} in a wrapped call of one rank: {', '.join(self._missing)} are not set",
                advice=f"before the call of the wrapped function, set os.environ['RANK'] = '{rank or 0}', "
                f"os.environ['WORLD_SIZE'] = '{world_size}', and MASTER_ADDR and MASTER_PORT alike on all ranks; "
                "then write init_process_group() without rank and world_size",
            )
        present = rank_and_world_size()
        if self._are_of_the_start(rank, world_size, present):
            raise RestartAbort(
                f"{call}: in iteration {iteration} this is rank {present[0]} of {present[1]}",
                advice="write init_process_group() without rank and world_size, and ask torch.distributed for them; "
                "also for what is divided among the ranks, as the samples",
            )

    def _are_of_the_start(self, rank: int | None, world_size: int | None, present: tuple[int, int]) -> bool:
        """Whether what was passed is that of the entry, and no longer that of the iteration.

        A world size that is larger than the present one is so with any rank: one that was read anew would wait as well.
        """
        entry_rank, entry_size = self._on_entry
        if world_size == entry_size > present[1]:
            return True
        return rank == entry_rank != present[0] and world_size in {entry_size, None}


ARGUMENTS: Final = (
    "world_size", "is_master", "timeout", "wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv",
)  # fmt: skip
"""The parameters of torch's `TCPStore` after host and port, in order."""
HOSTED_ATTEMPT: Final = timedelta(seconds=1)
CONNECT_ATTEMPT: Final = timedelta(seconds=5)
"""How long one attempt to connect may block signals."""
STORE_TIMEOUT: Final = timedelta(seconds=300)
"""torch's default timeout."""


def given_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a `TCPStore` after host and port, by name."""
    return dict(zip(ARGUMENTS, args, strict=False)) | kwargs


def connect(init: Callable[..., None], given: dict[str, Any], endpoint: tuple[str, int], *, hosted: bool) -> None:
    """Connect a store client in short attempts.

    Args:
        init: the constructor, with store, host and port bound.
        given: its further arguments.
        endpoint: host and port.
        hosted: whether the wrapper hosts the store: then all ranks are clients, and none waits for the others.

    Raises:
        torch.distributed.DistNetworkError, torch.distributed.DistStoreError: when no server answers in time.
    """
    timeout: timedelta = given.get("timeout", STORE_TIMEOUT)
    given = {"is_master": False, "wait_for_workers": False} if hosted else given
    attempt = min(timeout, HOSTED_ATTEMPT if hosted else CONNECT_ATTEMPT)
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        _await_server(*endpoint, timeout)
        try:
            init(**{**given, "timeout": attempt})
            return
        except (dist.DistNetworkError, dist.DistStoreError):
            if time.monotonic() >= deadline:
                raise


def _await_server(host_name: str, port: int, timeout: timedelta) -> None:
    """Wait in Python for a store's server: no signal ends torch's own wait for a server that does not exist yet."""
    try:
        await_listener(host_name, port, timeout)
    except StoreConnectionError as error:
        raise dist.DistNetworkError(str(error)) from None


def ranks_in(url: str) -> tuple[int | None, int | None]:
    """Return the rank and the world size in the URL of a rendezvous, None for what it lacks."""
    query = parse_qs(urlsplit(url).query)
    rank, world_size = (int(query[name][-1]) if name in query else None for name in ("rank", "world_size"))
    return rank, world_size


def rendezvous_at(
    endpoint: tuple[str, int], rank: int, world_size: int, timeout: timedelta = STORE_TIMEOUT, **_: object
) -> Iterator[tuple[dist.Store, int, int]]:
    """Yield a client of the store hosted at `endpoint`, with this rank and world size."""
    yield dist.TCPStore(*endpoint, is_master=False, timeout=timeout), rank, world_size


def with_prefix(
    stores: Iterator[tuple[dist.Store, int, int]], calls: int, groups: int
) -> Iterator[tuple[dist.Store, int, int]]:
    """Yield the same rendezvous with a key prefix that the earlier `calls`, and `groups` of this one, have not used."""
    prefix = f"call-{calls}-default-group-{groups}"
    for store, rank, world_size in stores:
        yield (dist.PrefixStore(prefix, store) if calls or groups else store), rank, world_size
