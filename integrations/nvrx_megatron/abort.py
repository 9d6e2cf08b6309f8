"""The abort of a Megatron job: a composition of independent parts, so that a failing part skips no other."""

from __future__ import annotations

from typing import Self

from nvrx_core.inprocess.abort import Abort, AbortTorchDistributed, AbortTransformerEngine
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.nested_restarter import NestedRestarterHandlingStarting
from nvrx_megatron.writers import AbortCheckpointWriters

__all__ = ["MegatronAbort"]


class MegatronAbort(Compose):
    """An abort that ends everything in which a Megatron job may block; further parts can be composed with it.

    The order: the log line for an outer restarter, the processes that write a checkpoint, the buffers that Transformer
        Engine has registered with torch's communicators, torch's process groups, Transformer Engine's own
        communicators; then, in the main thread, the parts that must run there.
    """

    def __new__(cls) -> Self:
        """Create an instance that is also an `Abort`."""
        return super().__new__(cls, *_parts())

    def __init__(self) -> None:
        super().__init__(*_parts())


def _parts() -> tuple[Abort, ...]:
    """Return the parts; the last one runs first."""
    return (
        AbortTransformerEngine(),
        AbortTorchDistributed(),
        AbortCheckpointWriters(),
        NestedRestarterHandlingStarting(),
    )
