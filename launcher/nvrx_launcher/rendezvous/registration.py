"""Makes the rendezvous of this launcher known to torch elastic, as `nvrx-c10d` and `nvrx-etcd-v2`.

An installed package needs no call: torch finds both by their entry points (`torchrun.handlers`). Nothing is imported
before one of them is requested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["NAMES", "creator", "register"]

NAMES: Final = ("nvrx-c10d", "nvrx-etcd-v2")


def register() -> None:
    """Register both with torch elastic's registry; a second call has no effect."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    for name in NAMES:
        rendezvous_handler_registry.register(name, create)


def creator() -> Callable[[Any], Any]:
    """Return the function that creates a handler; the entry points refer to it."""
    return create


def create(parameters: Any) -> Any:
    """Return a handler for torch's `RendezvousParameters`.

    Raises:
        ConfigurationError: when a parameter is wrong.
        StoreConnectionError: when the store cannot be reached in time.
    """
    from nvrx_launcher.rendezvous.elastic.handler import CoordinatedRendezvous

    return CoordinatedRendezvous(parameters)
