"""Joining a rendezvous of torch's or a user's, by a handler that is registered with torch elastic.

torch's own is `etcd`. Users register theirs by an entry point of the group `torchrun.handlers`, or in a
module that is imported before.
"""

from __future__ import annotations

import functools
import importlib.metadata
import socket
from contextlib import ExitStack
from typing import Any, Final

from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousParameters,
    rendezvous_handler_registry,
)

from nvrx_core.errors import ConfigurationError
from nvrx_core.parsing import parse_endpoint
from nvrx_core.store.endpoint import StoreConnectionError, local_address
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.rendezvous.coordination import NodeEvents
from nvrx_launcher.rendezvous.handlers.coordination import HandlerCoordination
from nvrx_launcher.rendezvous.mailbox import Mailbox
from nvrx_launcher.rendezvous.messages import NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.ports import free_port
from nvrx_launcher.rendezvous_settings import OURS
from nvrx_launcher.store_host import StoreHost

__all__ = ["join_by_handler"]

TIMEOUT: Final = 900
"""Seconds; what torchrun gives a handler where --rdzv-conf has no timeout."""


def join_by_handler(
    options: LaunchOptions, rules: Rules, loop: EventLoop, *, cleanup: ExitStack, node: NodeEvents
) -> HandlerCoordination:
    """Return the connection to the rendezvous that the options name.

    Args:
        options: the job.
        rules: the limits of restarts.
        loop: the event loop that watches descriptors.
        cleanup: releases what is acquired.
        node: handles the events.

    Raises:
        ConfigurationError: when the backend is not registered, or refuses its parameters.
        StoreConnectionError: when its store cannot be reached.
    """
    handler = _handler(options)
    mailbox = Mailbox(loop)
    cleanup.callback(mailbox.close)
    address = options.local_addr or _own_address(options.endpoint_text.split(",")[0])
    control = StoreHost(loop, options.job_name, address=address)
    cleanup.callback(control.close)
    made = HandlerCoordination(
        handler, mailbox, node, describe=functools.partial(_describe, options, address), control=control, rules=rules,
        interval=options.monitor_interval,
        close_timeout=options.rendezvous.close_timeout,
    )  # fmt: skip
    cleanup.callback(made.close, loop)
    return made


def _own_address(endpoint: str) -> str:
    """Return the address of the interface that leads to an endpoint; the format of an endpoint is its handler's."""
    try:
        return local_address(*parse_endpoint(endpoint, 1))
    except ValueError:
        return socket.gethostname()


def _handler(options: LaunchOptions) -> RendezvousHandler:
    config: dict[str, Any] = {"timeout": TIMEOUT, **options.rendezvous.given}
    parameters = RendezvousParameters(
        options.rdzv_backend, options.endpoint_text, options.run_id, options.min_nodes, options.max_nodes,
        options.local_addr, **config,
    )  # fmt: skip
    try:
        return rendezvous_handler_registry.create_handler(parameters)
    except ModuleNotFoundError as error:
        problem = f"{options.rdzv_backend} needs {error.name}, which is not installed"
        raise ConfigurationError("command line", "--rdzv-backend", problem, "pip install 'nvrx[etcd]'") from None
    except (ValueError, RuntimeError) as error:
        raise ConfigurationError("command line", "--rdzv-backend", str(error), f"known are {_known()}") from None
    except RendezvousConnectionError as error:
        where = f"the rendezvous {options.rdzv_backend} at {options.endpoint_text!r}"
        raise StoreConnectionError(f"cannot reach {where}: {error.__cause__ or error}") from None


def _known() -> str:
    plugged = (each.name for each in importlib.metadata.entry_points(group="torchrun.handlers"))
    return ", ".join(sorted({*OURS, "etcd", *plugged}))


def _describe(options: LaunchOptions, address: str) -> NodeDescription:
    return NodeDescription(
        socket.gethostname(), address, free_port(), options.workers, options.order, options.compared_command
    )
