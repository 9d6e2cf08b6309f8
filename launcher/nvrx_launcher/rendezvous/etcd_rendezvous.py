"""etcd as the store of a rendezvous: it outlives every launcher, so that the job depends on no single node."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any, Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.store.connection import StoreConnection
from nvrx_core.store.endpoint import StoreSilentError
from nvrx_launcher.rendezvous.keys import job_prefix
from nvrx_launcher.rendezvous.store_threads import Link
from nvrx_launcher.rendezvous_settings import RendezvousSettings

__all__ = ["EtcdRendezvous"]

log = logging.getLogger("nvrx_launcher")
DEFAULT: Final = "127.0.0.1:2379"
CERTIFICATES: Final = {"ca_cert": "ca_cert", "ssl_cert": "cert_cert", "ssl_cert_key": "cert_key"}


class EtcdRendezvous:
    """The keys of a job in etcd.

    Args:
        endpoints: `host:port`, or several of them separated by commas: the members of a cluster.
        run_id: the job's name.
        settings: the settings of the rendezvous.

    Attributes:
        endpoint: the first of them.
        is_hosted: False: no launcher hosts it.

    Raises:
        ConfigurationError: when an endpoint is invalid, or the client of etcd is not installed.
    """

    is_hosted = False

    def __init__(self, endpoints: str, run_id: str, settings: RendezvousSettings) -> None:
        try:
            from nvrx_core.store.etcd_client import Endpoint
        except ModuleNotFoundError as error:
            advice = "pip install 'nvrx[etcd]'"
            raise ConfigurationError(
                "command line", "--rdzv-backend", f"etcd-v2 needs {error.name}, which is not installed", advice
            ) from None
        self._settings = settings
        texts = [each.strip() for each in (endpoints or DEFAULT).split(",")]
        self._endpoints = [each if "://" in each else f"{settings.protocol}://{each}" for each in texts]
        try:
            first = [Endpoint.parse(each) for each in self._endpoints]
        except ValueError as error:
            raise ConfigurationError("command line", "--rdzv-endpoint", str(error), "write host:port") from None
        self.endpoint = first[0].host, first[0].port
        files = {ours: getattr(settings, key) for key, ours in CERTIFICATES.items()}
        self._options: dict[str, Any] = {"prefix": job_prefix(run_id), **{k: v for k, v in files.items() if v}}

    def connect(self) -> Link:
        """Open a connection, as soon as etcd answers.

        Raises:
            StoreConnectionError: when it does not in time.
        """
        store = self._open(self._settings.store_connect_wait_seconds)
        return Link(store, self._connect_again, self._settings.join_timeout)

    def _connect_again(self, deadline: float, cut: threading.Event) -> StoreConnection:
        """Open a connection that replaces a broken one, also to an etcd that accepts it and is silent for a while.

        Args:
            deadline: until when, monotonic seconds.
            cut: the connection is no longer needed.

        Raises:
            StoreConnectionError: when etcd has not answered in time.
        """
        log.warning("etcd at %s does not answer", ", ".join(self._endpoints))
        while True:
            try:
                return self._open(max(0.0, deadline - time.monotonic()))
            except StoreSilentError:
                if time.monotonic() >= deadline or cut.is_set():
                    raise

    def _open(self, within: float) -> StoreConnection:
        from nvrx_core.store.etcd_store import EtcdStore

        store = EtcdStore(self._endpoints, timeout=timedelta(seconds=within), **self._options)
        store.set_timeout(timedelta(seconds=self._settings.read_timeout))
        return StoreConnection(lambda: store, EtcdStore, {})
