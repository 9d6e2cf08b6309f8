"""The undocumented names of Megatron; no other file of the package uses one.

`tests/harness/megatron/canary.py` checks them in the installed megatron-core, and fails with the name that is missing.
A name of `megatron.training` is checked at run time only, because no package index has that package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

__all__ = [
    "CORE_STATE", "DESTROYERS", "TRAINING_STATE", "WHOLE_FILES", "build_of_helpers", "common_savers",
    "destroyers", "flag_texts", "ft_client", "loaded", "openers", "persistent_caller_class", "recent_saves_queue",
    "results_queue_module", "saves_module", "saves_queue_class",
]  # fmt: skip

CORE_STATE: Final = (
    "megatron.core.parallel_state",
    "megatron.core.num_microbatches_calculator",
    "megatron.core.rerun_state_machine",
    "megatron.core.tensor_parallel.random",
)
"""Modules of megatron-core whose global variables belong to one run of the training."""

TRAINING_STATE: Final = (
    "megatron.training.global_vars",
    "megatron.training.ft_integration",
    "megatron.training.async_utils",
    "megatron.training.checkpointing",
)
"""Those of Megatron-LM."""

DESTROYERS: Final = (
    ("megatron.training.training", "destroy_global_state"),
    ("megatron.core.num_microbatches_calculator", "destroy_num_microbatches_calculator"),
    ("megatron.core.parallel_state", "destroy_global_memory_buffer"),
    ("megatron.core.parallel_state", "destroy_model_parallel"),
    ("megatron.core.rerun_state_machine", "destroy_rerun_state_machine"),
)
"""Functions that drop the state of a run; each may be called if there is no state."""

WHOLE_FILES: Final = frozenset({"latest_checkpointed_iteration.txt", "ft_state.json", "metadata.json"})
"""Text files whose truncation makes a load fail: the tracker, learned timeouts, a checkpoint's format."""


def loaded(module: str) -> Any:
    """Return a module if it is imported, else None."""
    return sys.modules.get(module)


def destroyers() -> list[tuple[str, Callable[[], object]]]:
    """Return the functions of `DESTROYERS` whose modules are imported, by name."""
    found = ((name, getattr(loaded(module), name, None)) for module, name in DESTROYERS)
    return [(name, function) for name, function in found if function is not None]


def ft_client() -> Any:
    """Return Megatron-LM's client of a rank monitor, None when it has none."""
    return getattr(loaded("megatron.training.ft_integration"), "_GLOBAL_RANK_MONITOR_CLIENT", None)


def saves_module() -> Any:
    """Return the module of megatron-core's queue of background saves, if it is imported."""
    return loaded("megatron.core.dist_checkpointing.strategies.async_utils")


def saves_queue_class() -> Any:
    """Return the class of the queues of background saves, None before it is imported."""
    return getattr(saves_module(), "AsyncCallsQueue", None)


def persistent_caller_class() -> Any:
    """Return the class of the persistent writer, None before it is imported."""
    return getattr(saves_module(), "PersistentAsyncCaller", None)


def results_queue_module() -> Any:
    """Return the module with the results queue of the writer processes, if it is imported."""
    return loaded("megatron.core.dist_checkpointing.strategies.filesystem_async")


def recent_saves_queue() -> Any:
    """Return the queue that megatron-core <= 0.16 keeps for all saves of a process; its calls are numbered."""
    return getattr(loaded("megatron.core.dist_checkpointing.strategies.base"), "async_calls", None)


def flag_texts() -> tuple[Any, str]:
    """Return the class, None before 0.16, and the name of its method that reads the help texts of flags."""
    return getattr(loaded("megatron.training.argument_utils"), "ArgumentGroupFactory", None), "_get_field_docstrings"


def build_of_helpers() -> tuple[Any, str]:
    """Return the module, None before it is imported, and the name of its function that builds a library by `make`."""
    return loaded("megatron.core.datasets.utils"), "compile_helpers"


def openers() -> list[tuple[Any, str]]:
    """Return the places from which the writers of `WHOLE_FILES` take `open`; from 0.19 on, in an object."""
    checkpointing = loaded("megatron.training.checkpointing")
    tracker = (getattr(checkpointing, "maybe_msc", None), "open")
    if tracker[0] is None:
        tracker = (checkpointing, "open_file")
    modules = ("megatron.training.ft_integration", "megatron.core.dist_checkpointing.core")
    found = [tracker, *((loaded(name), "open") for name in modules)]
    return [(home, name) for home, name in found if home is not None]


def common_savers() -> list[tuple[Any, str]]:
    """Return the places from which megatron-core <= 0.18 takes the function that writes `common.pt`."""
    strategies = loaded("megatron.core.dist_checkpointing.strategies.common")
    found = (
        loaded("megatron.core.dist_checkpointing.serialization"),
        getattr(strategies, "TorchCommonSaveStrategy", None),
    )
    return [(home, "save_common") for home in found if hasattr(home, "save_common")]
