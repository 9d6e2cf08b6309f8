"""torch's TCP store as the store of a rendezvous: hosted by the launcher that can listen at the endpoint."""

from __future__ import annotations

import errno
import logging
import math
import socket
import threading
import time
import uuid
from contextlib import ExitStack
from datetime import timedelta
from typing import Final

import torch.distributed as dist

from nvrx_core.backoff import Backoff
from nvrx_core.errors import first_line
from nvrx_core.parsing import endpoint_text
from nvrx_core.store.connection import StoreConnection
from nvrx_core.store.endpoint import (
    LINE_EVERY,
    StoreBrokenError,
    StoreConnectionError,
    StoreSilentError,
    answer_deadline,
    await_listener,
    is_loopback,
    listener_at,
)
from nvrx_core.store.hosting import serve_on
from nvrx_core.store.torch_stores import CONNECT_TIMEOUT, RECONNECT_TIMEOUT
from nvrx_launcher.rendezvous.store_threads import Link
from nvrx_launcher.rendezvous_settings import RendezvousSettings

__all__ = ["TcpRendezvous"]

log = logging.getLogger("nvrx_launcher")
NOT_OURS: Final = (errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EAFNOSUPPORT)
"""Errors of listening where another launcher may be the one that can."""
PROBE: Final = 5.0
PAUSES: Final = Backoff(0.1, 0.2)
"""Between two attempts to connect again."""
LEAST: Final = 1.0
"""Seconds that an attempt to connect has at least, also at the deadline."""
OURS: Final = "nvrx"
"""What the keys of launchers and wrapped calls begin with."""
LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a server that listens on all interfaces reaches itself."""
INSTANCE: Final = "nvrx-rendezvous/instance"
"""The key whose value tells a store from another one that may be hosted at the same endpoint later."""


class TcpRendezvous:
    """The store at a rendezvous endpoint.

    Args:
        endpoint: host and port.
        settings: the settings of the rendezvous.

    Attributes:
        endpoint: as given.
        is_hosted: this launcher hosts it.
    """

    def __init__(self, endpoint: tuple[str, int], settings: RendezvousSettings) -> None:
        self._host, self._port = self.endpoint = endpoint
        self.is_hosted = False
        self._settings, self._instance = settings, ""
        # of a static rendezvous: it is the options' choice, by the node's rank, and not the user's
        self._is_static = settings.is_host is not None and "is_host" not in settings.given
        self._why_not = "that is the part of --node-rank 0" if self._is_static else "--rdzv-conf is_host=0"
        self._saying, self._is_silent, self._next_line = threading.Lock(), False, 0.0

    def host(self, cleanup: ExitStack) -> None:
        """Host the store, unless another launcher does or must.

        Raises:
            StoreConnectionError: when this launcher must host it, and cannot.
        """
        listener = self._listen() if self._settings.is_host is not False else None
        if listener is None:
            if self._settings.is_host:
                raise StoreConnectionError(f"cannot host the rendezvous at {self}: {self._why_not}")
            return
        bound = listener.getsockname()[0]
        if is_loopback(bound):
            log.warning("the rendezvous endpoint %s is this machine's own: no other one can join", self)
        log.info("host the rendezvous at %s", self)
        # torch's server connects to itself, which may not work by a translated address
        cleanup.enter_context(serve_on(listener, LOOPBACK.get(bound, self._host)))
        self.is_hosted = True

    def connect(self) -> Link:
        """Open a connection, as soon as a launcher hosts the store, or the one that was found before answers again.

        Raises:
            StoreConnectionError: when none does in time; the message says what was tried.
        """
        within = self._settings.join_timeout
        store = self._connect_again(time.monotonic() + within, threading.Event()) if self._instance else self._find()
        return Link(store, self._connect_again, within)

    def _find(self) -> StoreConnection:
        """Open the first connection."""
        timeout = self._settings.store_connect_wait_seconds
        try:
            await_listener(self._host, self._port, timedelta(seconds=timeout))
        except StoreConnectionError as error:
            why = str(error).partition("(")[2].partition(")")[0]
            if self._is_static:
                tried = "to connect failed"
                cure = "the launcher with --node-rank 0 must run, and be reached by --master-addr and --master-port"
            else:
                tried = f"to listen there failed ({self._why_not}), and so did to connect,"
                cure = "--rdzv-endpoint must be an address of one of the job's nodes, whose launcher is running"
            raise StoreConnectionError(
                f"nobody hosts the rendezvous at {self}: {tried} for {timeout:g} s ({why}); {cure}"
            ) from None
        try:
            store = self._open()
        except StoreConnectionError as error:
            why = str(error).partition(f"{self} ")[2].partition(";")[0]
            if not why:  # the reason is in this launcher, such as a failed thread
                raise
            raise self._no_rendezvous(f"it {why}") from None
        try:
            self._instance = self._join_instance(store)
        except dist.DistNetworkError as error:
            raise StoreConnectionError(f"the rendezvous at {self} no longer answers: {first_line(error)}") from None
        return store

    def _join_instance(self, store: StoreConnection) -> str:
        """Return what identifies the store; the first launcher writes it, before any other key.

        Raises:
            StoreConnectionError: when it is the store of something else, such as a process group.
        """
        has_keys = store.num_keys() > 0
        if has_keys and not store.check([INSTANCE]):
            keys = store.list_keys() if hasattr(store, "list_keys") else []
            if not any(key.startswith(OURS) for key in keys):
                named = f", such as {keys[0]!r}" if keys else ""
                raise self._no_rendezvous(f"it is a store with keys of something else{named}")
        return store.compare_set(INSTANCE, "", uuid.uuid4().hex).decode()

    def _no_rendezvous(self, why: str) -> StoreConnectionError:
        return StoreConnectionError(
            f"what listens at --rdzv-endpoint {self} is no rendezvous: {why}; choose a port that nothing else uses, or "
            "end what listens there"
        )

    def _listen(self) -> socket.socket | None:
        """Listen at the endpoint; return None if it belongs to another host, or another launcher listens there."""
        try:
            # the address of node rank 0 may be one that is translated, as a service of Kubernetes has
            return listener_at(self._host, self._port, anywhere=self._is_static)
        except OSError as error:
            is_unknown_name = isinstance(error, socket.gaierror)
            if is_unknown_name and self._is_static:  # the name of a pod is published once it has started
                return listener_at("0.0.0.0", self._port)
            if error.errno not in NOT_OURS and not is_unknown_name:
                raise
            self._why_not = error.strerror or str(error)
            return None

    def _connect_again(self, deadline: float, cut: threading.Event) -> StoreConnection:
        """Open a connection that replaces a broken one, or another one.

        A network partition may heal, and a store that stands still, so that it accepts connections and answers none,
        may go on. One that has ended does not come back; another one at its endpoint belongs to another job.

        Args:
            deadline: until when, monotonic seconds.
            cut: the connection is no longer needed.

        Raises:
            StoreConnectionError: when the store is lost, or cannot be reached in time.
        """
        begun, failures = time.monotonic(), 0
        while True:
            try:
                socket.create_connection((self._host, self._port), timeout=PROBE).close()
                store = self._open(max(LEAST, deadline - time.monotonic()))
                is_same = store.check([INSTANCE]) and store.get(INSTANCE).decode() == self._instance
            except ConnectionRefusedError:
                raise StoreConnectionError(f"nobody listens at {self} any more") from None
            except (OSError, dist.DistNetworkError, StoreSilentError, StoreBrokenError) as error:
                is_reached = isinstance(error, StoreConnectionError)
                why = "it accepts connections, and answers none" if is_reached else first_line(error)
                self._say_silent(why, begun=begun, deadline=deadline)
                failures += 1
                if time.monotonic() >= deadline or cut.wait(PAUSES.pause(failures)):
                    raise StoreConnectionError(
                        f"no way to {self} for {self._settings.join_timeout:g} s: {why}"
                    ) from None
            else:
                if is_same:
                    self._say_answered()
                    return store
                raise StoreConnectionError(f"another launcher hosts another rendezvous at {self}")

    def _say_silent(self, why: str, *, begun: float, deadline: float) -> None:
        """Say it for all threads that try to connect, every 10 s; what lasts less than a second is not said."""
        now = time.monotonic()
        with self._saying:
            if now - begun < LEAST or now < self._next_line:
                return
            self._is_silent, self._next_line = True, now + LINE_EVERY
        left = max(0.0, deadline - now)
        log.warning("the rendezvous at %s does not answer (%s); it is tried for another %.0f s", self, why, left)

    def _say_answered(self) -> None:
        with self._saying:
            was_silent, self._is_silent = self._is_silent, False
        if was_silent:
            log.info("the rendezvous at %s answers again", self)

    def _open(self, within: float = math.inf) -> StoreConnection:
        """Open a connection that fails when an answer takes longer than `read_timeout`: torch has no such bound."""
        settings, longest = self._settings, CONNECT_TIMEOUT.total_seconds()

        def open_store(within: float) -> dist.TCPStore:
            host, port = self._host, self._port
            timeout = timedelta(seconds=min(within, longest))
            with answer_deadline(host, port, within=within):
                store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
            store.set_timeout(timedelta(seconds=settings.read_timeout))
            return store

        again, silence = RECONNECT_TIMEOUT.total_seconds(), max(1, math.ceil(settings.read_timeout))
        return StoreConnection(lambda: open_store(within), open_store, {"within": again}, silence=silence)

    def __str__(self) -> str:
        return endpoint_text(self._host, self._port)
