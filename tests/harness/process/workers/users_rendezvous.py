"""A user's rendezvous: a backend of their own under torch's handler, registered as `own`.

As a module it is what an entry point of `torchrun.handlers` names. As a program it registers `own` itself, and launches
a function on one node; it prints what that has returned.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token, create_handler

NAME = "own"


class OwnBackend(RendezvousBackend):
    """Keeps the state of a rendezvous as c10d's does."""

    def __init__(self, inner: RendezvousBackend) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """Its name, which is that of the handler as well."""
        return NAME

    def get_state(self) -> tuple[bytes, Token] | None:
        """The state."""
        return self._inner.get_state()

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Another state."""
        return self._inner.set_state(state, token)


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    """Make a handler."""
    backend, store = create_backend(parameters)
    return create_handler(store, OwnBackend(backend), parameters)


def creator() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What the entry point loads."""
    return create


def recovers() -> str:
    """Rank 1 fails in the first cycle."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if os.environ["RANK"] == "1":
            sys.exit(3)
        time.sleep(60)
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def main(endpoint: str) -> dict[int, Any]:
    """Launch on one node."""
    from nvrx_launcher import LaunchConfig, elastic_launch

    rendezvous_handler_registry.register(NAME, create)
    config = LaunchConfig(1, 1, 2, rdzv_backend=NAME, rdzv_endpoint=endpoint, max_restarts=1, start_method="fork")
    return elastic_launch(config, recovers)()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
