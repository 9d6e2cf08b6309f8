"""How a node comes to the coordinator of its job.

A job of one node has it in its own launcher. Of several nodes, the one that can listen at the rendezvous endpoint hosts
store and coordinator; launchers may be started in any order.
"""

from __future__ import annotations

import functools
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

from nvrx_core.store.endpoint import local_address
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.rendezvous.coordination import Coordination, LocalCoordination, NodeEvents
from nvrx_launcher.rendezvous.coordinator import Coordinator, Rules
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.mailbox import Mailbox
from nvrx_launcher.rendezvous.messages import NodeDescription
from nvrx_launcher.rendezvous.restart_pacing import PacingRules
from nvrx_launcher.store_host import ControlStore

if TYPE_CHECKING:
    from nvrx_launcher.rendezvous.store_coordination import RendezvousStore

__all__ = ["join_job"]


def join_job(
    options: LaunchOptions, loop: EventLoop, cleanup: ExitStack, node: NodeEvents, *, pacing: PacingRules
) -> Coordination:
    """Return the way to the coordinator.

    Args:
        options: the job.
        loop: where descriptors are watched.
        cleanup: gives back what is acquired.
        node: told of what happens.
        pacing: how fast restarts may follow each other.

    Raises:
        StoreConnectionError: when nobody listens at the rendezvous endpoint in time.
        OSError: when an address cannot be used.
    """
    rules = _rules(options, pacing)
    if options.max_nodes > 1 or options.backend == "etcd-v2":
        return _join_over_store(options, loop, cleanup, node, rules=rules)
    control = ControlStore(loop, options.job_name, address=options.master_addr)
    cleanup.callback(control.close)
    describe = functools.partial(_describe, options, options.master_addr)
    return LocalCoordination(Coordinator(rules), describe, node, store=control)


def _join_over_store(
    options: LaunchOptions, loop: EventLoop, cleanup: ExitStack, node: NodeEvents, *, rules: Rules
) -> Coordination:
    from nvrx_core.store.cpp_log_level import FATAL, quiet_for_good
    from nvrx_launcher.rendezvous.store_coordination import StoreCoordination

    quiet_for_good(FATAL)  # a lost store is logged in one line
    keys, mailbox = RendezvousKeys(options.run_id), Mailbox(loop)
    cleanup.callback(mailbox.close)
    store = _store(options, cleanup)
    address = options.local_addr or local_address(*store.endpoint)
    control = ControlStore(loop, options.job_name, address=address, hosted=lambda: coordination.control_in_use())  # noqa: PLW0108 - it is made below
    cleanup.callback(control.close)
    coordination = StoreCoordination(
        store, keys, mailbox, node, describe=functools.partial(_describe, options, address), control=control,
        rules=rules, settings=options.rendezvous,
    )  # fmt: skip
    cleanup.callback(coordination.close, loop)
    return coordination


def _store(options: LaunchOptions, cleanup: ExitStack) -> RendezvousStore:
    if options.backend == "etcd-v2":
        from nvrx_launcher.rendezvous.etcd_rendezvous import EtcdRendezvous

        return EtcdRendezvous(options.endpoint_text, options.run_id, options.rendezvous)
    from nvrx_launcher.rendezvous.tcp_store import TcpRendezvous

    store = TcpRendezvous(options.endpoint, options.rendezvous)
    store.host(cleanup)
    return store


def _rules(options: LaunchOptions, pacing: PacingRules) -> Rules:
    settings = options.rendezvous
    return Rules(
        options.min_nodes, options.max_nodes, options.max_restarts, policy=options.policy,
        last_call=settings.last_call, join_timeout=settings.join_timeout,
        command=options.command if settings.same_command else "", pacing=pacing,
    )  # fmt: skip


def _describe(options: LaunchOptions, address: str) -> NodeDescription:
    port = options.master_port if options.max_nodes == 1 and options.master_port else _free_port()
    command = options.command if options.rendezvous.same_command else ""
    return NodeDescription(socket.gethostname(), address, port, options.workers, options.order, command)


def _free_port() -> int:
    """Return a port that nobody uses at the moment."""
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])
