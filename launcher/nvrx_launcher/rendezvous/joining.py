"""Joining a job: how a node finds the coordinator.

In a job of one node, its launcher runs the coordinator. Of several nodes, the one that can listen at the rendezvous
endpoint hosts store and coordinator, and with `--rdzv-backend static` that of node rank 0; launchers may be started in
any order. A rendezvous of torch's or a user's has no coordinator.
"""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvrx_core.errors import ConfigurationError
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.settings.parameter import declarations
from nvrx_core.store.endpoint import local_address, numeric_address
from nvrx_launcher.declared_options import declared
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.nvlink_domain import find_nvlink_domain
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.rendezvous.checkpoint_progress import ProgressRules
from nvrx_launcher.rendezvous.coordination import Coordination, LocalCoordination, NodeEvents
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.mailbox import Mailbox
from nvrx_launcher.rendezvous.messages import NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.ports import free_port
from nvrx_launcher.rendezvous.restart_budget import PacingRules
from nvrx_launcher.rendezvous_settings import KEYS, OURS, RendezvousSettings
from nvrx_launcher.store_host import StoreHost

if TYPE_CHECKING:
    from nvrx_launcher.rendezvous.store_coordination import RendezvousStore, StoreCoordination

__all__ = ["RendezvousConfig", "join_job", "join_over_store"]

log = logging.getLogger("nvrx_launcher")


@dataclass(frozen=True)
class RendezvousConfig:
    """The rendezvous of a job.

    Attributes:
        backend: c10d or etcd-v2.
        run_id: the job's name.
        job_name: its name in the store of in-process restart.
        endpoint: host and port, for c10d.
        endpoint_text: the endpoints, for etcd-v2.
        local_addr: the address of this node; None: that of the interface that leads to the endpoint.
        settings: the settings of the rendezvous.
    """

    backend: str
    run_id: str
    job_name: str
    endpoint: tuple[str, int]
    endpoint_text: str
    local_addr: str | None
    settings: RendezvousSettings

    @classmethod
    def of(cls, options: LaunchOptions) -> RendezvousConfig:
        """Return that of a launcher."""
        return cls(
            options.backend, options.run_id, options.job_name, options.endpoint, options.endpoint_text,
            options.local_addr, options.rendezvous,
        )  # fmt: skip


def join_job(
    options: LaunchOptions,
    loop: EventLoop,
    cleanup: ExitStack,
    node: NodeEvents,
    *,
    config: FaultToleranceConfig,
    iteration: Callable[[], int],
    stops_within: float,
) -> Coordination:
    """Return the connection to the coordinator.

    Args:
        options: the job.
        loop: the event loop that watches descriptors.
        cleanup: releases what is acquired.
        node: handles the events.
        config: how fast restarts may follow each other and when they are given up, and the segments of nodes.
        iteration: returns the iteration of the last checkpoint; -1 for unknown.
        stops_within: seconds that this node may take to stop its workers, and to be ready again.

    Raises:
        ConfigurationError: when the backend is not registered, or the nodes cannot form the segments.
        StoreConnectionError: when nobody listens at the rendezvous endpoint in time.
        OSError: when an address cannot be used.
    """
    rules = _rules(options, config)
    if options.rdzv_backend not in OURS:
        from nvrx_launcher.rendezvous.handlers.joining import join_by_handler

        if config.checkpoint_iteration_file is not None:
            log.warning("--ft-checkpoint-iteration-file has no effect with --rdzv-backend %s", options.rdzv_backend)
        return join_by_handler(options, rules, loop, cleanup=cleanup, node=node)
    is_alone = options.max_nodes == 1 and options.rdzv_backend != "etcd-v2"
    domain = "" if is_alone or config.segment is None else find_nvlink_domain()
    describe = functools.partial(
        _describe, options, rules, domain=domain, iteration=iteration, stops_within=stops_within
    )
    if not is_alone:
        return join_over_store(RendezvousConfig.of(options), rules, describe, loop, cleanup=cleanup, node=node)
    control = StoreHost(loop, options.job_name, address=options.master_addr)
    cleanup.callback(control.close)
    describe_here = functools.partial(describe, options.master_addr)
    return LocalCoordination(Coordinator(rules), describe_here, node, store=control)


def join_over_store(
    rendezvous: RendezvousConfig,
    rules: Rules,
    describe: Callable[[str], NodeDescription],
    loop: EventLoop,
    *,
    cleanup: ExitStack,
    node: NodeEvents,
) -> StoreCoordination:
    """Return the connection to the coordinator over a store.

    Args:
        rendezvous: that of the job.
        rules: the parameters of the decisions.
        describe: describes this node, given its address.
        loop: the event loop that watches descriptors.
        cleanup: releases what is acquired.
        node: handles the events.

    Raises:
        StoreConnectionError: when the store cannot be reached in time.
        OSError: when an address cannot be used.
    """
    from nvrx_core.store.cpp_log_level import FATAL, quiet_for_good
    from nvrx_launcher.rendezvous.connections import CoordinatorConnection, NodeListener
    from nvrx_launcher.rendezvous.store_coordination import StoreCoordination

    quiet_for_good(FATAL)  # a lost store is logged in one line
    keys, mailbox = RendezvousKeys(rendezvous.run_id), Mailbox(loop)
    cleanup.callback(mailbox.close)
    store = _store(rendezvous, cleanup)
    address = rendezvous.local_addr or local_address(*store.endpoint)
    control = StoreHost(loop, rendezvous.job_name, address=address)
    cleanup.callback(control.close)
    listener = NodeListener(loop, rendezvous.run_id, numeric_address(address))
    cleanup.callback(listener.close)
    coordination = StoreCoordination(
        store, keys, mailbox, node, describe=functools.partial(describe, address), control=control, rules=rules,
        settings=rendezvous.settings, listener=listener, connection=CoordinatorConnection(loop, rendezvous.run_id),
    )  # fmt: skip
    cleanup.callback(coordination.close, loop)
    return coordination


def _store(rendezvous: RendezvousConfig, cleanup: ExitStack) -> RendezvousStore:
    if rendezvous.backend == "etcd-v2":
        from nvrx_launcher.rendezvous.etcd_rendezvous import EtcdRendezvous

        return EtcdRendezvous(rendezvous.endpoint_text, rendezvous.run_id, rendezvous.settings)
    from nvrx_launcher.rendezvous.tcp_store import TcpRendezvous

    store = TcpRendezvous(rendezvous.endpoint, rendezvous.settings)
    store.host(cleanup)
    return store


def _rules(options: LaunchOptions, config: FaultToleranceConfig) -> Rules:
    settings, segment = options.rendezvous, config.segment
    if segment is not None and options.min_nodes % segment:
        problem = f"{options.min_nodes} nodes, the minimum of --nnodes, are no segments of {segment}"
        raise ConfigurationError("command line", "--ft-segment", problem, f"write --nnodes {segment}, or a multiple")
    if segment is not None and (options.has_fixed_ranks or options.rdzv_backend not in OURS):
        problem = f"{options.rdzv_backend} says itself which nodes take part"
        raise ConfigurationError("command line", "--ft-segment", problem, "leave it out, or write --rdzv-backend c10d")
    return Rules(
        options.min_nodes, options.max_nodes, options.max_restarts, restart_policy=options.restart_policy,
        last_call_timeout=settings.last_call_timeout, join_timeout=settings.join_timeout,
        command=options.compared_command, same_command=settings.same_command is True,
        pacing=PacingRules(config.restart_window, config.max_restarts_in_window, config.restart_backoff),
        host=socket.gethostname(), given=_given(options, config), expected_hosts=options.expected_hosts,
        segment=segment, node_ranks=options.min_nodes if options.has_fixed_ranks else 0,
        progress=ProgressRules(config.max_no_progress_cycles, config.min_progress_iterations),
    )  # fmt: skip


def _given(options: LaunchOptions, config: FaultToleranceConfig) -> tuple[tuple[str, str], ...]:
    """Return the options whose values are the job's: those of the coordinator's launcher count."""
    values = {f"--{each.name}": getattr(options, each.field) for each in declared(LaunchOptions) if each.is_jobs}
    values |= {
        config.spelling.flag(name): getattr(config, name)
        for name, (_, each) in declarations(config).items() if each.is_jobs
    }  # fmt: skip
    values |= {f"--rdzv-conf {key.name}": getattr(options.rendezvous, key.name) for key in KEYS if key.is_jobs}
    return tuple(
        (name, f"{value}".removesuffix(".0") if isinstance(value, float) else f"{value}".lower())
        for name, value in values.items()
    )


def _describe(
    options: LaunchOptions, rules: Rules, address: str, *,
    domain: str, iteration: Callable[[], int], stops_within: float,
) -> NodeDescription:  # fmt: skip
    """Describe this node to the coordinator, anew for each cycle."""
    port = options.master_port if options.max_nodes == 1 and options.master_port else free_port()
    return NodeDescription(
        socket.gethostname(), address, port, options.workers, options.order, options.compared_command,
        stops_within, rules.given, domain, iteration(),
    )  # fmt: skip
