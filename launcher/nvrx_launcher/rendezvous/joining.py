"""How a node comes to the coordinator of its job.

A job of one node has it in its own launcher. Of several nodes, the one that can listen at the rendezvous endpoint hosts
store and coordinator; launchers may be started in any order.
"""

from __future__ import annotations

import functools
import socket
from contextlib import ExitStack

from nvrx_core.store.endpoint import local_address
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.rendezvous.coordination import Coordination, LocalCoordination, NodeEvents
from nvrx_launcher.rendezvous.coordinator import Coordinator, Rules
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.mailbox import Mailbox
from nvrx_launcher.rendezvous.messages import NodeDescription
from nvrx_launcher.store_host import ControlStore

__all__ = ["join_job"]


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
    settings = options.rendezvous
    coordinator = Coordinator(Rules(
        options.min_nodes, options.max_nodes, options.max_restarts, policy=options.policy,
        last_call=settings.last_call, join_timeout=settings.join_timeout,
        command=options.command if settings.same_command else "",
    ))  # fmt: skip
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
    from nvrx_launcher.rendezvous.coordinator_host import CoordinatorHost
    from nvrx_launcher.rendezvous.store_coordination import StoreCoordination
    from nvrx_launcher.rendezvous.tcp_store import TcpRendezvous

    quiet_for_good(FATAL)  # a lost store is logged in one line
    options, coordinator = job
    settings = options.rendezvous
    keys, mailbox = RendezvousKeys(options.run_id), Mailbox(loop)
    cleanup.callback(mailbox.close)
    store = TcpRendezvous(options.endpoint, settings)
    is_host = store.host(cleanup)
    first, own = store.connect(), None
    address = options.local_addr or local_address(*options.endpoint)
    if is_host:
        own = CoordinatorHost(coordinator, store.connect, keys, mailbox, settings=settings)
        control = ControlStore(loop, options.job_name, address=address, hosted=own.store_in_use)
        first(lambda store: store.set(keys.endpoint, control.endpoint))
    else:
        endpoint = first(lambda store: store.get(keys.endpoint)).decode()
        control = ControlStore(loop, options.job_name, endpoint=endpoint)
    cleanup.callback(control.close)
    describe = functools.partial(_describe, options, address)
    coordination = StoreCoordination(
        store.connect, keys, mailbox, node, describe=describe, store=control, host=own, settings=settings
    )
    cleanup.callback(coordination.close, loop)
    return coordination


def _describe(options: LaunchOptions, address: str) -> NodeDescription:
    port = options.master_port if options.max_nodes == 1 and options.master_port else _free_port()
    command = options.command if options.rendezvous.same_command else ""
    return NodeDescription(socket.gethostname(), address, port, options.workers, options.order, command)


def _free_port() -> int:
    """Return a port that nobody uses at the moment."""
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])
