"""One connection to the control store, reopened when it breaks while the store runs.

Keep-alive probes detect a connection whose peer has vanished; the next request detects one that was reset. A wait, a
`check`, a `get` and a `compare_set` are idempotent, and are retried. A `set` and an `append` have no answer, and an
`add` counts: it is unknown whether one that broke was executed, so it fails. Before these operations the connection is
checked, without traffic, and reopened if it is broken: it may have been idle for hours.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, ParamSpec, TypeVar

import torch.distributed as dist

from nvrx_core.process.sockets import bound_reading, is_whole, keep_alive, shut_down, socket_inodes, tcp_sockets
from nvrx_core.store.cpp_log_level import FATAL, quiet
from nvrx_core.store.endpoint import StoreConnectionError, answer_deadline, await_listener
from nvrx_core.store.torch_stores import FURTHER_TIMEOUT, RECONNECT_TIMEOUT, Factory, another

__all__ = ["StoreConnection", "endpoint_of", "further", "reconnect"]

log = logging.getLogger("nvrx_core.inprocess")
Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")
STAYS_OPEN: Final = timedelta(seconds=0.1)
"""How long a connection stays open to a server that runs. In the middle of its end a process still listens, and torch,
which tries again for seconds, cannot be interrupted there."""
_BROKEN: Final = (dist.DistNetworkError, ConnectionError)


def endpoint_of(store: dist.Store) -> tuple[str, int]:
    """Return host and port of the store; the port is 0 where it has none."""
    endpoint: tuple[str, int] | None = getattr(store, "endpoint", None)
    return endpoint or (getattr(store, "host", type(store).__name__), getattr(store, "port", 0))


def reconnect(
    store: dist.Store, factory: Factory, kwargs: Mapping[str, Any], *, is_over: Callable[[], bool] = lambda: False
) -> dist.Store:
    """Open another connection to the same store, within seconds.

    Raises:
        StoreConnectionError: when no process listens at the store's endpoint, it does not answer, or nobody waits for
            it any more (`is_over`).
    """
    host, port = endpoint_of(store)
    if not port:
        return another(store, factory, kwargs)
    await_listener(host, port, FURTHER_TIMEOUT, stays=STAYS_OPEN, is_over=is_over)
    with quiet(FATAL):
        return further(store, factory, kwargs, RECONNECT_TIMEOUT)


def further(store: dist.Store, factory: Factory, kwargs: Mapping[str, Any], within: timedelta) -> dist.Store:
    """Open one more connection to a store that has a port.

    Raises:
        StoreConnectionError: when it does not answer within that time, or `NVRX_STORE_ANSWERS_WITHIN`.
    """
    with answer_deadline(*endpoint_of(store)), _connect_deadline(store, within) as timeout:
        found = another(store, factory, kwargs)
    found.set_timeout(timeout)
    return found


@contextmanager
def _connect_deadline(store: dist.Store, within: timedelta) -> Iterator[timedelta]:
    """Bound the time in which a clone connects: a server that ends meanwhile would block it for the whole timeout."""
    timeout: timedelta = store.timeout  # type: ignore[attr-defined]
    store.set_timeout(min(timeout, within))
    try:
        yield timeout
    finally:
        store.set_timeout(timeout)


class StoreConnection:
    """The operations of a store on such a connection.

    Args:
        make: opens the first connection.
        factory, kwargs: how to open another one to a store that has no `clone`.
        silence: seconds without a byte after which a blocking read fails; None for no bound.
        beside: another connection, which may have broken together with this one.

    Attributes:
        store: torch's store, on the current connection.
        inodes: the sockets of this connection and of earlier ones.
        closed: the connection is not reopened.
    """

    def __init__(
        self,
        make: Callable[[], dist.Store],
        factory: Factory,
        kwargs: Mapping[str, Any],
        *,
        silence: int | None = None,
        beside: StoreConnection | None = None,
    ) -> None:
        self._factory, self._kwargs, self._silence, self._beside = factory, kwargs, silence, beside
        self._doubted = self._is_counting = False
        self._opening, self._calling = threading.Lock(), threading.RLock()
        self.closed = False
        self.inodes: frozenset[int] = frozenset()
        self._open(make)

    def _open(self, make: Callable[[], dist.Store]) -> None:
        before = socket_inodes()
        self.store = make()
        port = endpoint_of(self.store)[1]
        new = tcp_sockets(lambda inode: inode not in before)
        found = [each for each in new if port in (0, each.peer_port, each.local_port)]  # others are other threads'
        self._ends = [each for each in found if each.peer_port == port and each.local_port != port]
        for each in self._ends:
            keep_alive(each)
            if self._silence is not None:
                bound_reading(each, self._silence)
        self.inodes |= {each.inode for each in found}

    def bound(self, silence: int) -> None:
        """Let a blocking read fail after so many seconds without a byte; 0 for no bound."""
        self._silence = silence
        for each in self._ends:
            bound_reading(each, silence)

    def _reopen(self, broken: dist.Store) -> bool:
        """Reopen the connection, unless another thread has; return whether it is open."""
        with self._opening:
            if self.store is broken and self._ends and not self.closed:
                try:
                    self._open(lambda: reconnect(broken, self._factory, self._kwargs, is_over=lambda: self.closed))
                except (StoreConnectionError, RuntimeError, OSError) as error:
                    log.debug("the connection to the store is not opened again: %s", error)
                    return False
                if self._beside is not None:
                    self._beside._doubted = True
            return self.store is not broken and not self.closed

    def break_silent(self, within: float, count_within: float) -> bool:
        """Break the connection, of which nothing arrives: a wait and the next operation open it again.

        An operation that is under way ends first; one that has not ended in time hears as little as the waits do. It is
        repeated, except for an addition, which fails, and with it the rank: the store may only be slow, so an addition
        has more time.

        Args:
            within: seconds for which such an operation is waited for.
            count_within: further seconds for which an addition is waited for.

        Returns:
            whether there was a connection to break.
        """
        idle = self._calling.acquire(timeout=within) or (
            self._is_counting and self._calling.acquire(timeout=count_within)
        )
        try:
            for each in self._ends:
                shut_down(each)
            return bool(self._ends)
        finally:
            if idle:
                self._calling.release()

    def close(self) -> None:
        """Close the connection for all users of this object; every later operation fails."""
        self.closed, self.store = True, dist.Store()  # torch's base class, which has no operation

    def _repeat(self, ask: Callable[[dist.Store], Answer]) -> Answer:
        """Ask the store, and once more if the connection was broken and is open again."""
        store = self.store
        try:
            return ask(store)
        except _BROKEN:
            if not self._reopen(store):
                raise
            return ask(self.store)

    def _once(self, ask: Callable[[dist.Store], Answer], *, counts: bool = False) -> Answer:
        """Ask the store once, on a connection that was whole a moment ago."""
        with self._calling:  # from here on, `break_silent` waits
            if self._doubted:
                self._doubted = False
                self._repeat(lambda store: store.check(["any"]))
            if not all(map(is_whole, self._ends)):
                self._reopen(self.store)
            self._is_counting = counts
            try:
                return ask(self.store)
            finally:
                self._is_counting = False

    def _alone(self, call: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        """Call the store, one thread at a time, except for waits: a custom store need not be thread-safe."""
        with self._calling:
            return call(*args, **kwargs)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """As of torch's store."""
        self._repeat(lambda store: store.wait(keys, timeout))

    def check(self, keys: list[str]) -> bool:
        """As of torch's store."""
        return bool(self._repeat(lambda store: self._alone(store.check, keys)))

    def get(self, key: str) -> bytes:
        """As of torch's store."""
        return bytes(self._repeat(lambda store: self._alone(store.get, key)))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """As of torch's store."""
        return list(self._repeat(lambda store: self._alone(store.multi_get, keys)))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """As of torch's store."""
        return bytes(self._repeat(lambda store: self._alone(store.compare_set, key, expected, desired)))

    def set(self, key: str, value: str) -> None:
        """As of torch's store."""
        self._once(lambda store: store.set(key, value))

    def append(self, key: str, value: str) -> None:
        """As of torch's store."""
        self._once(lambda store: store.append(key, value))  # type: ignore[attr-defined]

    def add(self, key: str, amount: int) -> int:
        """As of torch's store."""
        return int(self._once(lambda store: store.add(key, amount), counts=True))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        return functools.partial(self._alone, found) if callable(found) else found
