"""The names of Megatron that its documentation does not promise; no other file of the package has one.

`tests/unit/megatron/test_internals.py` looks for them in the megatron-core that is installed, and fails with the name
that has moved. A name of `megatron.training` is looked for at run time only, because no package index has that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

__all__ = [
    "CORE_STATE", "DESTROYERS", "TRACKER", "TRAINING_STATE", "build_of_helpers", "destroyers", "flag_texts",
    "ft_client", "loaded", "recent_saves_queue", "results_queue_module", "saves_module",
]  # fmt: skip

CORE_STATE: Final = (
    "megatron.core.parallel_state",
    "megatron.core.num_microbatches_calculator",
    "megatron.core.rerun_state_machine",
    "megatron.core.tensor_parallel.random",
)
"""Modules of megatron-core whose global variables belong to one run of a training."""

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
"""Functions that drop the state of a run; each may be called when there is none."""

TRACKER: Final = "latest_checkpointed_iteration.txt"
"""The file that names the checkpoint to load."""


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


def results_queue_module() -> Any:
    """Return the module that keeps the queue in which writer processes report, if it is imported."""
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
