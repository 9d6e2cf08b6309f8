"""Hosting a control store outside the ranks, in a separate process or in a launcher: it outlives every rank."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Final

from nvrx_core.parsing import endpoint_text
from nvrx_core.process.file_limit import allow_more_files
from nvrx_core.store.endpoint import handed_over, listen

__all__ = ["StoreServer", "serve", "serve_on"]

ALL_INTERFACES: Final = ("0.0.0.0", "::")


class StoreServer:
    """A control store that this process hosts, until it is closed. A context manager.

    Args:
        host: the address that the ranks connect to.
        port: its port.
        server: torch's store, which serves in its own thread.

    Attributes:
        endpoint: `host:port` or `[address]:port`, as NVRX_STORE_ENDPOINT takes it.
    """

    def __init__(self, host: str, port: int, server: Any) -> None:
        self.host, self.port, self._server = host, port, server
        self.endpoint = endpoint_text(host, port)

    def close(self) -> None:
        """Close the store; ranks that still use it lose it. A second call does nothing."""
        self._server = None

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(host: str = "127.0.0.1", port: int = 0) -> StoreServer:
    """Host a control store in this process, in its own thread.

    Each rank holds three connections, so the process's soft limit of open files is raised by 262,144, as far as the
    hard one allows.

    Args:
        host: the address of this machine that the ranks connect to; "0.0.0.0" or "::" listens on all interfaces, and
            the endpoint then has this machine's host name.
        port: the port; 0 takes a free one.

    Raises:
        StoreConnectionError: when the port is in use, or the host is no address of this machine.
    """
    return serve_on(listen(host, port), host)


def serve_on(listener: socket.socket, host: str) -> StoreServer:
    """Host a control store on a listening socket, which the store takes over.

    Args:
        listener: the socket.
        host: the address that the ranks connect to.
    """
    import torch.distributed as dist

    port = listener.getsockname()[1]
    allow_more_files()
    with handed_over(listener) as fd:
        server = dist.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
    return StoreServer(socket.gethostname() if host in ALL_INTERFACES else host, port, server)
