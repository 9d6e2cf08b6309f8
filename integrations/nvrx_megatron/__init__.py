"""Megatron integration: in-process restart for Megatron-LM and for custom training loops on megatron-core."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvrx_core.inprocess.abort import AbortTransformerEngine
    from nvrx_megatron.abort import MegatronAbort
    from nvrx_megatron.arguments import add_arguments
    from nvrx_megatron.checkpoint import AtomicCheckpoint
    from nvrx_megatron.finalize import MegatronFinalize
    from nvrx_megatron.live_state import MegatronLiveState
    from nvrx_megatron.ranks import megatron_rank_assignment
    from nvrx_megatron.restart import inprocess_restart
    from nvrx_megatron.script import enable
    from nvrx_megatron.state import state_report

__all__ = [
    "AbortTransformerEngine", "AtomicCheckpoint", "MegatronAbort", "MegatronFinalize", "MegatronLiveState",
    "add_arguments", "enable", "inprocess_restart", "megatron_rank_assignment", "state_report",
]  # fmt: skip

_HOME = {
    "AbortTransformerEngine": "nvrx_core.inprocess.abort",
    "AtomicCheckpoint": "nvrx_megatron.checkpoint",
    "MegatronAbort": "nvrx_megatron.abort",
    "MegatronFinalize": "nvrx_megatron.finalize",
    "MegatronLiveState": "nvrx_megatron.live_state",
    "add_arguments": "nvrx_megatron.arguments",
    "enable": "nvrx_megatron.script",
    "inprocess_restart": "nvrx_megatron.restart",
    "megatron_rank_assignment": "nvrx_megatron.ranks",
    "state_report": "nvrx_megatron.state",
}


if not TYPE_CHECKING:  # checkers see the names above, and refuse any other

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
