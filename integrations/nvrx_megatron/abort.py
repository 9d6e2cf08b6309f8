"""The abort of a Megatron job: a composition whose parts stand alone, so that one that fails skips no other."""

from __future__ import annotations

from typing import Self

from nvrx_core.inprocess.abort import Abort, AbortTorchDistributed, AbortTransformerEngine
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.nested_restarter import NestedRestarterHandlingStarting
from nvrx_megatron.writers import AbortCheckpointWriters

__all__ = ["MegatronAbort"]


class MegatronAbort(Compose):
    """An abort that ends what a Megatron job may wait in; further parts can be composed with it.

    In this order: the line for an outer restarter, the processes that write a checkpoint, what Transformer Engine has
    registered with torch's communicators, torch's process groups, Transformer Engine's own communicators; and, in the
    main thread, what belongs there.
    """

    def __new__(cls) -> Self:
        """Create an instance that is an `Abort`, too."""
        return super().__new__(cls, *_parts())

    def __init__(self) -> None:
        super().__init__(*_parts())


def _parts() -> tuple[Abort, ...]:
    """The parts, of which the last one runs first."""
    return (
        AbortTransformerEngine(),
        AbortTorchDistributed(),
        AbortCheckpointWriters(),
        NestedRestarterHandlingStarting(),
    )
