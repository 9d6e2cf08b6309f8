"""torch's TCP store as the store of a rendezvous: hosted by the launcher that can listen at the endpoint."""

from __future__ import annotations

import errno
import logging
import select
import socket
import time
import uuid
from contextlib import ExitStack
from datetime import timedelta
from typing import Final

import torch.distributed as dist

from nvrx_core.parsing import endpoint_text
from nvrx_core.store.connection import StoreConnection
from nvrx_core.store.endpoint import StoreConnectionError, answer_deadline, await_listener, is_loopback, listener_at
from nvrx_core.store.hosting import serve_on
from nvrx_core.store.torch_stores import CONNECT_TIMEOUT
from nvrx_launcher.rendezvous.store_threads import Link
from nvrx_launcher.rendezvous_settings import RendezvousSettings

__all__ = ["TcpRendezvous"]

log = logging.getLogger("nvrx_launcher")
NOT_OURS: Final = (errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EAFNOSUPPORT)
"""Errors of listening where another launcher may be the one that can."""
PROBE: Final = 5.0
PAUSE: Final = 0.2
OURS: Final = "nvrx"
"""What the keys of launchers and wrapped calls begin with."""
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
        self._why_not = "--rdzv-conf is_host=0"

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
        if is_loopback(listener.getsockname()[0]):
            log.warning("the rendezvous endpoint %s is this machine's own: no other one can join", self)
        log.info("host the rendezvous at %s", self)
        cleanup.enter_context(serve_on(listener, self._host))
        self.is_hosted = True

    def connect(self) -> Link:
        """Open a connection, as soon as a launcher hosts the store.

        Raises:
            StoreConnectionError: when none does in time; the message says what was tried.
        """
        timeout = self._settings.store_connect_wait_seconds
        try:
            await_listener(self._host, self._port, timedelta(seconds=timeout))
        except StoreConnectionError as error:
            why = str(error).partition("(")[2].partition(")")[0]
            raise StoreConnectionError(
                f"nobody hosts the rendezvous at {self}: to listen there failed ({self._why_not}), and so did to "
                f"connect, for {timeout:g} s ({why}); --rdzv-endpoint must be an address of one of the job's nodes, "
                "whose launcher is running"
            ) from None
        try:
            store = self._open()
        except StoreConnectionError as error:
            why = str(error).partition(f"{self} ")[2].partition(";")[0]
            if not why:  # the reason is in this launcher, such as a failed thread
                raise
            raise self._no_rendezvous(f"it {why}") from None
        self._instance = self._instance or self._join_instance(store)
        return Link(store, self._connect_again, self._settings.join_timeout)

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
            return listener_at(self._host, self._port)
        except OSError as error:
            is_unknown_name = isinstance(error, socket.gaierror)
            if error.errno not in NOT_OURS and not is_unknown_name:
                raise
            self._why_not = error.strerror or str(error)
            return None

    def _connect_again(self, deadline: float) -> StoreConnection:
        """Open a connection that replaces a broken one.

        A network partition may heal. A store that has ended does not come back; another one at its endpoint belongs to
        another job.

        Raises:
            StoreConnectionError: when the store is lost, or cannot be reached until the deadline, a monotonic time.
        """
        while True:
            try:
                socket.create_connection((self._host, self._port), timeout=PROBE).close()
                return self._same_store()
            except ConnectionRefusedError:
                raise StoreConnectionError(f"nobody listens at {self} any more") from None
            except (OSError, dist.DistNetworkError) as error:
                if time.monotonic() >= deadline:
                    seconds = self._settings.join_timeout
                    raise StoreConnectionError(f"no way to {self} for {seconds:g} s: {error}") from None
            select.select([], [], [], PAUSE)

    def _same_store(self) -> StoreConnection:
        store = self._open()
        if not store.check([INSTANCE]) or store.get(INSTANCE).decode() != self._instance:
            raise StoreConnectionError(f"another launcher hosts another rendezvous at {self}")
        return store

    def _open(self) -> StoreConnection:
        timeout = timedelta(seconds=self._settings.read_timeout)

        def open_store() -> dist.TCPStore:
            host, port = self._host, self._port
            with answer_deadline(host, port):
                store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=CONNECT_TIMEOUT)
            store.set_timeout(timeout)
            return store

        return StoreConnection(open_store, open_store, {})

    def __str__(self) -> str:
        return endpoint_text(self._host, self._port)
