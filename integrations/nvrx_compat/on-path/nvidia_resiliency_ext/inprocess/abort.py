"""nvrx's `inprocess.abort`."""

from nvrx_core.inprocess.abort import Abort, AbortTorchDistributed, AbortTransformerEngine

__all__ = ["Abort", "AbortTorchDistributed", "AbortTransformerEngine"]
