"""The threads of a launcher that wait for the rendezvous store; each has a connection of its own.

A wait for a key blocks in torch, and its result is passed to the event loop. Requests are made one after another by
one thread, which makes a regular one in between. A request whose connection breaks is repeated on a new one, so each
must be idempotent; one that the store refuses is not. The end of a thread is reported, with the loss of the store or
the exception that has caused it.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

import torch.distributed as dist

from nvrx_core.backoff import Backoff
from nvrx_core.errors import first_line
from nvrx_core.process.helper_thread import HelperThread, HelperThreadError
from nvrx_core.process.sockets import shut_down, tcp_sockets
from nvrx_core.store.connection import StoreConnection
from nvrx_core.store.endpoint import StoreConnectionError, StoreRefusedError

__all__ = ["KEYS_GONE", "LOST", "Follower", "Link", "Requests", "multi_get"]

LOOKS_EVERY: Final = timedelta(seconds=5)
"""How long one wait for a key lasts; then the store is asked whether a later key exists."""

LOST: Final = (RuntimeError, OSError, StoreConnectionError)
"""The errors of a store that is lost."""

PAUSES: Final = Backoff(0.1, 5.0)
"""Before a request is repeated whose connection has broken more than once."""

KEYS_GONE: Final = (
    "the keys of this job are gone: the store was started again without its data, or no launcher of the job has "
    "renewed them in time (60 s in etcd), because the job has ended or all launchers stood still"
)

Value = TypeVar("Value")


class Link:
    """A connection that is opened again when it breaks; for one thread.

    Args:
        store: the first connection.
        again: opens another one, as soon as the store can be reached, until a monotonic time, or until the link is
            cut, which the event says; raises StoreConnectionError when it is lost.
        within: seconds for which a request is repeated.
    """

    def __init__(
        self, store: StoreConnection, again: Callable[[float, threading.Event], StoreConnection], within: float
    ) -> None:
        self._store, self._again, self._within, self._cut = store, again, within, threading.Event()

    @property
    def store(self) -> object:
        """Torch's store, on the current connection."""
        return self._store.store

    def __call__(self, request: Callable[[StoreConnection], Value]) -> Value:
        """Make a request; repeat it if its connection breaks.

        Raises:
            StoreConnectionError: when the store is lost.
            StoreRefusedError: when it does not carry the request out.
        """
        deadline, failures = math.inf, 0
        while True:
            try:
                return request(self._store)
            except (dist.DistStoreError, StoreRefusedError):  # the store's answer
                raise
            except (RuntimeError, OSError):
                now = time.monotonic()
                deadline = min(deadline, now + self._within)
                if (failures and now >= deadline) or self._cut.wait(PAUSES.pause(failures)):
                    raise
                failures += 1
                self._store = self._again(deadline, self._cut)
                if self._cut.is_set():
                    raise

    def cut(self) -> None:
        """End a wait on it in another thread; it cannot be used afterwards."""
        self._cut.set()
        connection = self._store
        store, inodes = connection.store, connection.inodes
        connection.close()
        if hasattr(store, "cut"):
            store.cut()
            return
        for found in tcp_sockets(inodes.__contains__):
            shut_down(found)


class Follower:
    """Delivers the values of numbered keys, in order, as they are written.

    Args:
        link: a connection of its own.
        key: names the key of a number.
        name: the name of the thread.
        found: called with each number and its value, in the thread of the follower.
        failed: called with the reason, a line, when the store is lost or the thread has failed otherwise.
        first: the first number.
        count: returns how many numbers were assigned so far; a missing key is skipped once a later number is assigned.
    """

    def __init__(
        self,
        link: Link,
        key: Callable[[int], str],
        *,
        name: str,
        found: Callable[[int, bytes], object],
        failed: Callable[[str], object],
        first: int = 1,
        count: Callable[[StoreConnection], int] | None = None,
    ) -> None:
        self._link, self._key, self._found, self._failed, self._count = link, key, found, failed, count
        self._first, self._ending = first, False
        self._thread = HelperThread(self._run, name=name, failed=self._fail)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Deliver no more values; the thread ends with the process, or with the store."""
        self._ending = True

    def end(self, within: float) -> None:
        """End the thread: torch aborts a process whose interpreter ends while one waits."""
        self._ending = True
        self._link.cut()
        if self._thread.ident is not None:
            self._thread.join(within)

    def _run(self) -> None:
        try:
            for number in itertools.count(self._first):
                if self._await(number) and not self._ending:
                    self._found(number, self._get(number))
                if self._ending:
                    return
        except LOST as error:
            if not self._ending:
                self._failed(_store_lost(error))

    def _fail(self, error: HelperThreadError) -> None:
        if not self._ending:
            self._failed(str(error))

    def _get(self, number: int) -> bytes:
        return self._link(lambda store: store.get(self._key(number)))

    def _await(self, number: int) -> bool:
        """Wait for a key; return False if it will never be written."""
        overtaken = False
        while not self._ending:
            try:
                self._link(lambda store: store.wait([self._key(number)], LOOKS_EVERY))
                return True
            except dist.DistStoreError:  # not written yet
                if overtaken:
                    return False
                overtaken = self._count is not None and self._link(self._count) > number
        return False


class Requests:
    """Makes requests in a thread, one after another, and a regular one in between.

    Args:
        link: a connection of its own.
        regular: made every `interval` seconds.
        interval: seconds.
        name: the name of the thread.
        failed: called with the reason, a line, when the store is lost or the thread has failed otherwise.
    """

    def __init__(
        self,
        link: Link,
        regular: Callable[[StoreConnection], object],
        interval: float,
        *,
        name: str,
        failed: Callable[[str], object],
    ) -> None:
        self._link, self._regular, self._interval, self._failed = link, regular, interval, failed
        self._requests = SimpleQueue[Callable[[StoreConnection], object] | None]()
        self._thread = HelperThread(self._run, name=name, failed=lambda error: failed(str(error)))

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ask(self, request: Callable[[StoreConnection], object]) -> None:
        """Make a request, soon."""
        self._requests.put(request)

    def finish(self, within: float) -> None:
        """Make the pending requests, and end, within `within` seconds; without `start`, none is made."""
        self._requests.put(None)
        if self._thread.ident is not None:
            self._thread.join(within)

    def _run(self) -> None:
        try:
            self._serve()
        except LOST as error:
            self._failed(_store_lost(error))

    def _serve(self) -> None:
        due = time.monotonic()
        while True:
            if (now := time.monotonic()) >= due:
                self._link(self._regular)
                due = now + self._interval
            try:
                request = self._requests.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                continue
            if request is None:
                return
            self._link(request)


def _store_lost(error: BaseException) -> str:
    if isinstance(error, StoreRefusedError):
        return f"the rendezvous store refuses a request: {first_line(error)}"
    if isinstance(error, dist.DistStoreError):  # a request waits for keys that are known to exist
        error = StoreConnectionError(KEYS_GONE)
    return f"the rendezvous store is lost: {first_line(error)}"


def multi_get(store: StoreConnection, keys: Iterable[str]) -> list[str]:
    """Return the values of keys that all exist."""
    wanted = list(keys)
    return [value.decode() for value in store.multi_get(wanted)] if wanted else []
