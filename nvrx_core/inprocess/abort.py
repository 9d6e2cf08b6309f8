"""Ending what the wrapped function waits in, so that it can be interrupted."""

from __future__ import annotations

import abc
import sys

from nvrx_core.failpoint import hit
from nvrx_core.inprocess.state import FrozenState

__all__ = ["Abort", "AbortTorchDistributed"]


class Abort(abc.ABC):
    """Ends asynchronously what the wrapped function may block in.

    Called from the monitor thread while the function still runs; it must neither wait for the function nor hold the
    interpreter's lock for long. An exception is logged, and the restart goes on.
    """

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Abort; returns the state for the next of a composition."""


class AbortTorchDistributed(Abort):
    """Ends the collectives of `torch.distributed` and clears its groups.

    gloo has no abort of its own: its connections are shut down, which ends a blocked collective within milliseconds.
    NCCL communicators are aborted by torch. Does nothing when torch.distributed was not used.
    """

    def __call__(self, state: FrozenState) -> FrozenState:
        """Abort all process groups."""
        if "torch.distributed" not in sys.modules:
            return state
        from nvrx_core.inprocess.torch_groups import abort_gloo, forget_groups

        hit("abort-during", state.iteration)
        abort_gloo()
        forget_groups()
        return state
