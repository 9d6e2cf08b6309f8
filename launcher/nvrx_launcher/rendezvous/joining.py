"""How a node comes to the coordinator of its job.

A job of one node has it in its own launcher. Of several nodes, the one that can listen at the rendezvous endpoint hosts
store and coordinator; launchers may be started in any order.
"""

from __future__ import annotations

import errno
import functools
import logging
import socket
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nvrx_core.store.endpoint import StoreConnectionError, await_listener, local_address
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.rendezvous.coordination import Coordination, LocalCoordination, NodeEvents
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.mailbox import Mailbox
from nvrx_launcher.rendezvous.messages import NodeDescription
from nvrx_launcher.store_host import ControlStore

if TYPE_CHECKING:
    from nvrx_core.store.connection import Connection

__all__ = ["join_job"]

log = logging.getLogger("nvrx_launcher")
BACKLOG: Final = 4096
REQUEST_WITHIN: Final = timedelta(seconds=30)
"""For one request to the store."""


def join_job(options: LaunchOptions, loop: EventLoop, cleanup: ExitStack, node: NodeEvents) -> Coordination:
    """Return the way to the coordinator.

    Args:
        options: the job.
        loop: where descriptors are watched.
        cleanup: gives back what is acquired.
        node: told of what happens.

    Raises:
        StoreConnectionError: when nobody listens at the rendezvous endpoint in time.
        OSError: when an address cannot be used.
    """
    coordinator = Coordinator(
        options.min_nodes, options.max_nodes, options.max_restarts,
        last_call=options.last_call, join_timeout=options.join_timeout,
    )  # fmt: skip
    if options.max_nodes > 1:
        return _join_over_store((options, coordinator), loop, cleanup, node)
    store = ControlStore(loop, options.job_name, address=options.master_addr)
    cleanup.callback(store.close)
    describe = functools.partial(_describe, options, options.master_addr)
    return LocalCoordination(coordinator, describe, node, store=store)


def _join_over_store(
    job: tuple[LaunchOptions, Coordinator], loop: EventLoop, cleanup: ExitStack, node: NodeEvents
) -> Coordination:
    from nvrx_core.store.cpp_log_level import FATAL, quiet_for_good
    from nvrx_launcher.rendezvous.store_coordination import CoordinatorHost, StoreCoordination

    quiet_for_good(FATAL)  # a lost store is logged in one line
    options, coordinator = job
    host, port = options.endpoint
    keys, mailbox = RendezvousKeys(options.run_id), Mailbox(loop)
    cleanup.callback(mailbox.close)
    listener = _listen(host, port)
    if listener is not None and listener.getsockname()[0].startswith("127."):
        log.warning("the rendezvous endpoint %s:%d is this machine's own: no other one can join", host, port)
    address = options.local_addr or local_address(host, port)
    if listener is not None:
        _host_rendezvous(listener, host, cleanup)
    connect = functools.partial(_connect, host, port, options.join_timeout)
    first, own = connect(), None
    if listener is not None:
        own = CoordinatorHost(coordinator, connect, keys, mailbox)
        store = ControlStore(loop, options.job_name, address=address, hosted=own.store_in_use)
        first.set(keys.endpoint, store.endpoint)
    else:
        store = ControlStore(loop, options.job_name, endpoint=first.get(keys.endpoint).decode())
    cleanup.callback(store.close)
    describe = functools.partial(_describe, options, address)
    coordination = StoreCoordination(connect, keys, mailbox, node, describe=describe, store=store, host=own)
    cleanup.callback(coordination.close, loop)
    return coordination


def _listen(host: str, port: int) -> socket.socket | None:
    """Listen at the endpoint; None when it is another host's, or another launcher listens there."""
    try:
        return socket.create_server((host, port), backlog=BACKLOG)
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
            raise
        return None


def _host_rendezvous(listener: socket.socket, host: str, cleanup: ExitStack) -> None:
    from nvrx_core.store.hosting import serve_on

    log.info("host the rendezvous at %s:%d", host, listener.getsockname()[1])
    cleanup.enter_context(serve_on(listener, host))


def _connect(host: str, port: int, join_timeout: float) -> Connection:
    """Open a connection to the rendezvous store, as soon as somebody listens there."""
    import torch.distributed as dist

    from nvrx_core.store.connection import Connection

    await_listener(host, port, timedelta(seconds=join_timeout))

    def open_store() -> dist.TCPStore:
        try:
            return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=REQUEST_WITHIN)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            raise StoreConnectionError(f"what listens at {host}:{port} is no rendezvous store: {why}") from error

    return Connection(open_store, open_store, {})


def _describe(options: LaunchOptions, address: str) -> NodeDescription:
    port = options.master_port if options.max_nodes == 1 and options.master_port else _free_port()
    return NodeDescription(socket.gethostname(), address, port, options.workers, options.order)


def _free_port() -> int:
    """Return a port that nobody uses at the moment."""
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])
