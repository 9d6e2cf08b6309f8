"""The threads of a launcher that wait for the rendezvous store; each has a connection of its own.

A wait for a key blocks in torch, and what it finds is handed to the event loop. Requests are made one after another by
one thread, which moves this node's lease in between.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Final

import torch.distributed as dist

from nvrx_core.store.connection import Connection

__all__ = ["LEASE_EVERY", "Follower", "Requests", "Store"]

LEASE_EVERY: Final = 1.0
"""Seconds between two moves of a lease."""
LOOKS_EVERY: Final = timedelta(seconds=5)
"""How long one wait for a key lasts; then the store is asked whether a later one is there."""

Store = Connection


class Follower:
    """Hands on the values of numbered keys, in order, as they are written.

    Args:
        store: a connection of its own.
        key: names the key of a number, from 1.
        found: called with each value, in the thread of the follower.
        failed: called when the store is lost.
        count: how many numbers were given out so far; a key that is not written while later ones are is passed over.
    """

    def __init__(
        self,
        store: Store,
        key: Callable[[int], str],
        *,
        found: Callable[[bytes], object],
        failed: Callable[[str], object],
        count: Callable[[Store], int] | None = None,
    ) -> None:
        self._store, self._key, self._found, self._failed, self._count = store, key, found, failed, count
        self._ending = False

    def start(self, name: str) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def stop(self) -> None:
        """Hand nothing more on; the thread ends with the process, or with the store."""
        self._ending = True

    def _run(self) -> None:
        try:
            for number in itertools.count(1):
                if self._await(number) and not self._ending:
                    self._found(self._store.get(self._key(number)))
                if self._ending:
                    return
        except (RuntimeError, OSError) as error:  # the store is lost
            if not self._ending:
                self._failed(str(error).partition("\n")[0])

    def _await(self, number: int) -> bool:
        """Wait for a key; False when whoever was to write it never will."""
        overtaken = False
        while not self._ending:
            try:
                self._store.wait([self._key(number)], LOOKS_EVERY)
                return True
            except dist.DistNetworkError:
                raise
            except dist.DistStoreError:  # not written yet
                if overtaken:
                    return False
                overtaken = self._count is not None and self._count(self._store) > number
        return False


class Requests:
    """Makes requests in a thread, one after another, and a regular one in between.

    Args:
        store: a connection of its own.
        regular: made every `LEASE_EVERY` seconds.
        failed: called when the store is lost.
    """

    def __init__(self, store: Store, regular: Callable[[Store], object], failed: Callable[[str], object]) -> None:
        self._store, self._regular, self._failed = store, regular, failed
        self._requests = SimpleQueue[Callable[[Store], object] | None]()
        self._thread = threading.Thread(target=self._run, name="nvrx-rendezvous", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ask(self, request: Callable[[Store], object]) -> None:
        """Make a request, soon."""
        self._requests.put(request)

    def finish(self, within: float) -> None:
        """Make what was asked for, and end; after `within` seconds at the latest."""
        self._requests.put(None)
        self._thread.join(within)

    def _run(self) -> None:
        try:
            self._serve()
        except (RuntimeError, OSError) as error:  # the store is lost
            self._failed(str(error).partition("\n")[0])

    def _serve(self) -> None:
        due = time.monotonic()
        while True:
            if (now := time.monotonic()) >= due:
                self._regular(self._store)
                due = now + LEASE_EVERY
            try:
                request = self._requests.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                continue
            if request is None:
                return
            request(self._store)


def multi_get(store: Store, keys: Iterable[str]) -> list[str]:
    """Return the values of keys that are all there."""
    wanted = list(keys)
    return [value.decode() for value in store.multi_get(wanted)] if wanted else []
