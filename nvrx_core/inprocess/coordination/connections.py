"""A call's own connections to the control store, and the stores that it gives to user code.

The main thread and the monitor thread have a connection each, because a blocking wait blocks all other operations on
its connection. How a wait is ended depends on the store: by its method `cut`, else by shutting down its TCP sockets; a
wait on a store with neither is split into short ones.
"""

from __future__ import annotations

import math
import resource
import socket
from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, cast

import torch.distributed as dist

from nvrx_core.errors import StoreLost
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.parsing import endpoint_text
from nvrx_core.process.descriptors import give_up
from nvrx_core.process.sockets import keep_open, shut_down, tcp_sockets, wait_closed
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.settings.environment import store_answers_within, with_environment_as_now
from nvrx_core.store.connection import StoreConnection, further
from nvrx_core.store.endpoint import StoreConnectionError, handed_over, listen, local_address
from nvrx_core.store.keys import StoreKeys
from nvrx_core.store.mixin import StoreMixin
from nvrx_core.store.torch_stores import CONNECT_TIMEOUT, Factory, another

__all__ = ["Connections"]

HOST_CLOSES_WITHIN: Final = 5.0
ANSWERS_WITHIN: Final = 1.0
"""Seconds within which an operation that can be repeated ends, unless nothing of its connection arrives either."""
OUTSIDE: Final = "find out why it ended or cannot be reached, and start it and the job again"
"""What to do when a store is lost that no rank hosts."""
MAPPED: Final = "::ffff:"
"""What an IPv4 address begins with on a socket of IPv6."""
TURN: Final = timedelta(seconds=0.2)
"""How long a store is waited for at a time, when nothing can end the wait."""
_left: Final[dict[str, dist.Store | None]] = {}
"""The store in which the last group of a call has met, for a group that the function leaves: it makes more of them."""
_TORCHS: Final = (dist.TCPStore, dist.FileStore, dist.HashStore, dist.PrefixStore)


class RoundPrefixStore(StoreMixin, dist.PrefixStore):
    """The store of a rank assignment, empty in each round.

    Args:
        prefix: put before every key.
        store: the control store.
        mark: the key that records that user code has written keys; "" for none.
    """

    def __init__(self, prefix: str, store: dist.Store, mark: str = "") -> None:
        super().__init__(prefix, store)
        self._control, self._mark = store, mark

    def _written(self) -> None:
        """Record that user code has written keys."""
        if self._mark:
            self._control.set(self._mark, "")
            self._mark = ""

    def set(self, key: str, value: str) -> None:
        """As of torch's store."""
        self._written()
        super().set(key, value)

    def add(self, key: str, amount: int) -> int:
        """As of torch's store."""
        self._written()
        return super().add(key, amount)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """As of torch's store."""
        self._written()
        return super().compare_set(key, expected, desired)

    def append(self, key: str, value: str) -> None:
        """As of torch's store."""
        self._written()
        cast(Any, super()).append(key, value)

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        """As of torch's store."""
        self._written()
        cast(Any, super()).multi_set(keys, values)


class Connections:
    """The connections of one call.

    Args:
        factory, kwargs: create a store.
        keys: the keys of the call, in any generation.
        interval: upper bound of `TURN`.

    Attributes:
        main_store: the main thread's connection.
        waiting_store: the monitor thread's connection.
        control_store: the call's operations on the main thread's connection, once the generation is known (`use`).
        of_monitor_thread: the same on the monitor thread's connection, likewise.
        endpoint: host and port of the store; the port is 0 where it has none.
        critical: the initial ranks that host it.
        is_torch_store: it is one of torch's own, which can serve as a rendezvous store of process groups.
    """

    def __init__(self, factory: Factory, kwargs: Mapping[str, Any], keys: StoreKeys, interval: timedelta) -> None:
        factory = with_environment_as_now(factory)
        self._factory, self._kwargs, self.keys = factory, kwargs, keys
        silence = math.ceil(store_answers_within())  # until the rank has joined: then its monitor process is the judge
        self._main = StoreConnection(lambda: factory(**kwargs), factory, kwargs, silence=silence)
        self._waiting = StoreConnection(self._second_store, factory, kwargs, beside=self._main)
        pair = (self.store, self._waiting.store)
        self._cuts = [cut for store in pair if (cut := getattr(store, "cut", None)) is not None]
        self.endpoint: tuple[str, int] = getattr(self.store, "endpoint", (type(self.store).__name__, 0))
        self.critical: tuple[int, ...] = tuple(getattr(self.store, "critical_ranks", ()))
        self._hosted: bool | None = getattr(self.store, "hosted", None)
        self.is_torch_store = isinstance(self.store, _TORCHS)
        self.main_store = GuardedStore(self._main)
        ends = self._cuts or self._sockets
        chunk = None if ends else min(TURN, interval)
        self.waiting_store = GuardedStore(self._waiting, chunk)
        self.control_store: ControlStore
        self.of_monitor_thread: ControlStore
        self._rendezvous: dist.Store | None = None
        self._offered: socket.socket | None = None

    def is_hosted_by(self, initial_rank: InitialRank) -> bool:
        """Whether this process, with this initial rank, hosts the store."""
        return initial_rank in self.critical if self._hosted is None else self._hosted

    def lost(self) -> StoreLost:
        """Return the error with which a call ends whose store is lost."""
        return StoreLost(*self.endpoint, advice=None if self.critical else OUTSIDE)

    def use(self, keys: StoreKeys) -> None:
        """Use the keys of the generation that the ranks have agreed on."""
        self.keys = keys
        self._main.bound(0)
        self.control_store = ControlStore(self.main_store, keys)
        self.of_monitor_thread = ControlStore(self.waiting_store, keys)

    @property
    def store(self) -> dist.Store:
        """The store on the main thread's connection."""
        return self._main.store

    @property
    def _sockets(self) -> frozenset[int]:
        return self._main.inodes | self._waiting.inodes

    def cut(self) -> None:
        """End all waits on these connections; they cannot be used afterwards."""
        self.waiting_store.stopped = self._main.closed = self._waiting.closed = True
        for cut in self._cuts:
            cut()
        for found in tcp_sockets(self._sockets.__contains__):
            if not found.listening and found.local_port != self.endpoint[1]:
                shut_down(found)

    def renew(self) -> bool:
        """Break the connections, of which nothing arrives: those who wait on them open them again.

        The monitor thread's comes first: it is the one that does not hear. A store with a `cut` of its own bounds its
        waits itself.

        Returns:
            whether there was a connection to break.
        """
        if self._cuts:
            return False
        longer = store_answers_within()
        broken = [each.break_silent(ANSWERS_WITHIN, longer) for each in (self._waiting, self._main)]
        return any(broken)

    def disown(self) -> None:
        """In a child of `os.fork`: release the rank's connections, and the server's port if the rank hosts it."""
        found, port = tcp_sockets(), self.endpoint[1]
        hosting = any(each.listening and each.inode in self._sockets for each in found)
        give_up(each.fd for each in found if each.inode in self._sockets or (hosting and each.local_port == port))
        if self._offered is not None:
            give_up([self._offered.fileno()])

    def wait_host_closed(self) -> None:
        """Wait until the rank that hosts the store has closed it."""
        wait_closed(tcp_sockets(self._sockets.__contains__), HOST_CLOSES_WITHIN)

    def assignment_store(self, iteration: int) -> RoundPrefixStore:
        """Return the store for a custom rank assignment before this iteration."""
        mark = self.keys.round(iteration).user
        return RoundPrefixStore(f"{mark}/assignment", self.store, mark)

    def another_store(self) -> dist.Store:
        """Open one more connection to the control store.

        Raises:
            StoreConnectionError: when the call has ended, or the store is lost.
        """
        if self._main.closed:
            raise StoreConnectionError(
                "no further connection to the control store: the call is over, or the store lost"
            )
        return another(self.store, self._factory, self._kwargs)

    def _second_store(self) -> dist.Store:
        """Open the monitor thread's connection; one of torch's would wait without end for a store that is silent."""
        if isinstance(self.store, dist.TCPStore):
            return further(self.store, self._factory, self._kwargs, CONNECT_TIMEOUT)
        return self.another_store()

    def iteration_store(self, iteration: int, endpoint: tuple[str, int] | None) -> dist.Store:
        """Open a torch store for the wrapped function, on its own connection.

        Args:
            iteration: the iteration.
            endpoint: the rendezvous endpoint of the iteration's process group; None if its rank 0 is lost.

        Raises:
            torch.distributed.DistStoreError: when there is no endpoint, and the control store is none of torch's.
        """
        if self.is_torch_store:
            connection = self.another_store()
            connection.set(self.keys.round(iteration).user, "")
        elif endpoint is None:
            raise dist.DistStoreError("rank 0 of this iteration, which was to host its store, is lost")
        else:
            connection = dist.TCPStore(*endpoint, is_master=False, wait_for_workers=False)
        return dist.PrefixStore(self.keys.round(iteration).user, connection)

    def offer_rendezvous(self) -> str:
        """Return the `host:port` at which this rank can host the next rendezvous, "" if it cannot.

        It listens before the endpoint is published: early connections wait in the queue of the store's server, and
        connections after the loss of this rank are refused at once.
        """
        try:
            port = self._listener().getsockname()[1]
        except (OSError, StoreConnectionError):
            return ""
        return endpoint_text(self._address, port)

    def host_rendezvous(self) -> str:
        """Host that store at the offered endpoint; return its `host:port`.

        Raises:
            StoreConnectionError: when it cannot be hosted, for example for lack of descriptors.
        """
        listener, self._offered = self._listener(), None
        port = listener.getsockname()[1]
        try:
            with handed_over(listener) as fd:
                self._rendezvous = dist.TCPStore(
                    self._address, port, is_master=True, wait_for_workers=False, master_listen_fd=fd
                )
        except dist.DistError as error:
            limit, reason = resource.getrlimit(resource.RLIMIT_NOFILE)[0], str(error).partition("\n")[0]
            where = endpoint_text(self._address, port)
            raise StoreConnectionError(
                f"cannot host the store of the next process group on {where}: {reason}; are all {limit} file "
                "descriptors in use? Close what the function leaves open, or raise `ulimit -n`"
            ) from None
        return endpoint_text(self._address, port)

    def _listener(self) -> socket.socket:
        if self._offered is None:
            self._offered = listen(self._address, 0, anywhere=True)
        return self._offered

    @cached_property
    def _address(self) -> str:
        """Return this host's address on the connection to the control store: a restart needs no name resolution."""
        for found in tcp_sockets(self._sockets.__contains__):
            if found.peer_port == self.endpoint[1] != 0 and (kept := keep_open(found)) is not None:
                with kept:
                    return str(kept.getsockname()[0]).removeprefix(MAPPED)
        return local_address(*self.endpoint) if self.endpoint[1] else socket.gethostname()

    def close(self) -> None:
        """Withdraw the offer and close the connections; code that still holds them cannot use them."""
        if self._offered is not None:
            self._offered.close()
        _left["rendezvous"] = self._rendezvous if dist.is_initialized() else None
        self._offered = self._rendezvous = None
        self._cuts.clear()
        self._waiting.close()
        self._main.close()
