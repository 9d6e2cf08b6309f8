"""torch's TCP store and file store, marked as usable by the wrapper; more connections to a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from nvrx_core.errors import require, require_type
from nvrx_core.parsing import MAX_PORT
from nvrx_core.settings.environment import (
    has_ranks,
    master,
    missing_variables,
    rank_and_world_size,
    store_endpoint,
    store_listens_within,
)
from nvrx_core.store.cpp_log_level import FATAL, quiet
from nvrx_core.store.endpoint import (
    StoreConnectionError,
    StoreSilentError,
    answer_deadline,
    await_listener,
    handed_over,
    listen,
)
from nvrx_core.store.mixin import DEFAULT_TIMEOUT, StoreMixin, as_client, client_only

__all__ = ["CONNECT_TIMEOUT", "FURTHER_TIMEOUT", "RECONNECT_TIMEOUT", "Factory", "FileStore", "TCPStore", "another"]

FURTHER_TIMEOUT: Final = timedelta(seconds=0.5)
"""For a further connection: the server was there for the first one."""
RECONNECT_TIMEOUT: Final = timedelta(seconds=2)
"""For a connection in the place of a broken one: the server may have been on its way out when it was found."""
CONNECT_TIMEOUT: Final = timedelta(seconds=8)
"""For the connection alone: the listener is known to be there, and torch would try again for as long as this."""
ATTEMPTS: Final = tuple(timedelta(seconds=seconds) for seconds in (0.25, 0.5, 1, 2, 4))
"""In turn, for a client: between two of them it is noticed that the server has ended."""
_CHOOSE: Final = "Wrapper(store_kwargs={'port': 29555}); is RANK=0 started twice, or an earlier start still running?"
_UNSET: Final = (
    "Wrapper(store_kwargs={{'port': 29555}}). Or is this one of several ranks? Without RANK and WORLD_SIZE each is a "
    "job of its own: start them with ft_launcher, or set {missing} in each before the call, as in the target of "
    "mp.spawn"
)

Factory = Callable[..., dist.Store]


class TCPStore(StoreMixin, dist.TCPStore):
    """torch's TCP store; the process whose RANK is 0 hosts it, unless `NVRX_STORE_ENDPOINT` names a server elsewhere.

    Args:
        host_name: where the server is; default MASTER_ADDR.
        port: its port; default MASTER_PORT + 1, because MASTER_PORT itself belongs to the job's process group.
        world_size: accepted for compatibility; the wrapper counts its ranks itself.
        timeout: how long to wait for the server, and default bound of blocking operations.
        wait_for_workers: accepted for compatibility, as `world_size`.
        multi_tenant: several stores of this process may share one server.
        use_libuv: the server's implementation; see torch.

    Raises:
        StoreConnectionError: when the server cannot be hosted or reached, or does not answer.
    """

    def __init__(  # noqa: PLR0917 (torch's order)
        self,
        host_name: str | None = None,
        port: int | None = None,
        world_size: int | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        use_libuv: bool = True,
    ) -> None:
        if port is not None:
            require_type("port", port, int)
            require(0 < port <= MAX_PORT, "port", port, "in the range 1 to 65535")
        require_type("timeout", timeout, timedelta)
        elsewhere = store_endpoint()
        address, master_port = master()
        host, chosen = elsewhere or (host_name or address, port or master_port + 1)
        self.endpoint = (host, chosen)
        self.hosted = elsewhere is None and not client_only() and rank_and_world_size()[0] == 0
        self._critical = () if elsewhere else (0,)
        options = {"wait_for_workers": False, "multi_tenant": multi_tenant, "use_libuv": use_libuv}
        if self.hosted:
            self._host(timeout, options)
        else:
            self._connect(timeout, options)
        self.set_timeout(timeout)

    def _host(self, timeout: timedelta, options: dict[str, Any]) -> None:
        host, port = self.endpoint
        choose = _CHOOSE if has_ranks() else _UNSET.format(missing=", ".join(missing_variables()))
        listener = listen(host, port, anywhere=True, name="MASTER_ADDR", choose=choose)
        options |= {"timeout": min(timeout, CONNECT_TIMEOUT)}
        with handed_over(listener) as fd, answer_deadline(host, port):
            super().__init__(host, port, is_master=True, master_listen_fd=fd, **options)

    def _connect(self, timeout: timedelta, options: dict[str, Any]) -> None:
        first, again = (FURTHER_TIMEOUT, timedelta()) if client_only() else (timeout, CONNECT_TIMEOUT)
        first = timedelta(seconds=min(first.total_seconds(), store_listens_within()))
        for attempt in ATTEMPTS:
            await_listener(*self.endpoint, min(timeout, first if attempt == ATTEMPTS[0] else again))
            try:
                with answer_deadline(*self.endpoint), quiet(FATAL):  # the error says it, in one line
                    super().__init__(*self.endpoint, is_master=False, timeout=min(timeout, attempt), **options)
            except StoreConnectionError as error:
                if isinstance(error, StoreSilentError) or attempt == ATTEMPTS[-1]:
                    raise
            else:
                return

    @property
    def critical_ranks(self) -> Sequence[int]:
        """Initial rank 0, when it hosts the server."""
        return self._critical


class FileStore(StoreMixin, dist.FileStore):
    """torch's file store, on a file system that all ranks share."""

    hosted = False
    endpoint = ("file", 0)

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        super().__init__(file_name, world_size)


def another(store: dist.Store, factory: Factory, kwargs: Mapping[str, Any]) -> dist.Store:
    """Open one more connection to the same store: a blocking wait blocks all other operations on its connection."""
    try:
        clone: dist.Store = store.clone()  # type: ignore[attr-defined]
        return clone
    except (AttributeError, RuntimeError, NotImplementedError):
        with as_client():
            return factory(**kwargs)
