"""The undocumented names of Megatron; no other file of the package uses one.

`tests/harness/megatron/canary.py` checks them in the installed megatron-core, and fails with the name that is missing.
A name of `megatron.training` is checked at run time only, because no package index has that package.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from nvrx_megatron.installed import mentions

__all__ = [
    "ACCUMULATED", "CHECKPOINT_FUNCTIONS", "CORE_STATE", "COUNTED_SAMPLES", "DESTROYERS", "LOOP", "LOSS_MEMORY",
    "TRACKER", "TRAINING_STATE", "VALIDATES", "WHOLE_FILES", "accumulated", "arguments_gone_for_live_state",
    "build_of_helpers", "chained_optimizers", "common_savers", "destroyers", "destroyers_gone", "flag_texts",
    "ft_client", "grad_scalers", "has_ft_client", "is_data_parallel", "is_distributed", "is_known_optimizer",
    "is_of_experts", "kept_besides", "loaded", "loop_gone", "names_gone_for_live_state", "openers",
    "parallelism_besides", "parameter_gathers", "part_of_model", "persistent_caller_class", "queues_of_modules",
    "results_queue_module", "rng_tracker", "saves_module", "saves_queue_class", "state_gone", "straggler_detector",
    "trackers_gone", "writes_common_state",
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

_TRACKER: Final = re.compile(r"_MOE\w*_TRACKER")
_DESTROYS: Final = re.compile(r"destroy_\w*tracker")
_CORE: Final = "megatron.core"
_CLIENT: Final = "_GLOBAL_RANK_MONITOR_CLIENT"
_OPTIMIZERS: Final = frozenset({"FP32Optimizer", "Float16OptimizerWithFloat16Params", "DistributedOptimizer"})
_EXPERTS: Final = (f"{_CORE}.transformer.moe.moe_utils", f"{_CORE}.transformer.moe.moe_logging")
ACCUMULATED: Final = (
    (f"{_CORE}.transformer.moe.moe_utils", "_MOE_LAYER_WISE_LOGGING_TRACKER", None),  # up to 0.16
    (f"{_CORE}.transformer.moe.moe_logging", "_MOE_METRICS_TRACKER", None),
    (f"{_CORE}.transformer.moe.moe_logging", "_MOE_OVERLOAD_FACTOR_TRACKER", None),
    (f"{_CORE}.transformer.multi_token_prediction", "MTPLossLoggingHelper.tracker", None),
    (f"{_CORE}.transformer.experimental_attention_variant.dsa", "DSAIndexerLossLoggingHelper.tracker", None),
    (f"{_CORE}.dist_checkpointing.strategies.cached_metadata_filesystem_reader",
     "CachedMetadataFileSystemReader._metadata_cache", None),
    (f"{_CORE}.pipeline_parallel.bridge_communicator", "BridgeCommunicator._broadcast_pg_cache", None),
    (f"{_CORE}.pipeline_parallel.bridge_communicator", "BridgeCommunicator._bridge_pg_cache", None),
    ("megatron.training.training", "_seqlen_stats_in_iteration", None),
    ("megatron.training.training", "_seqlen_stats_active", False),
)  # fmt: skip
"""What a run adds up or caches, with its value when empty if it is no container: the losses of experts and of predicted
tokens since the last log, the lengths of sequences, metadata by folder, groups by ranks. Their modules may be imported
by the first iteration."""

TRACKER: Final = "latest_checkpointed_iteration.txt"
WHOLE_FILES: Final = frozenset({TRACKER, "ft_state.json", "metadata.json"})
"""Text files whose truncation makes a load fail: the tracker, learned timeouts, a checkpoint's format."""

LOOP: Final = (
    "setup_model_and_optimizer", "load_checkpoint", "build_train_valid_test_data_loaders", "train", "train_step",
    "training_log", "checkpoint_and_decide_exit",
)  # fmt: skip
"""Functions that `megatron.training.training` has and calls; they are replaced where a restart goes on from memory."""
_CALLED: Final = (
    "evaluate_and_print_results", "get_args", "get_current_global_batch_size", "get_current_running_global_batch_size",
    "get_num_microbatches", "get_rerun_state_machine", "get_timers", "maybe_finalize_async_save",
    "update_num_microbatches",
)  # fmt: skip
_PARAMETERS: Final = {
    "train": (
        "forward_step_func", "model", "optimizer", "opt_param_scheduler", "train_data_iterator", "valid_data_iterator",
        "process_non_loss_data_func", "config", "checkpointing_context", "non_loss_data_func",
    ),
    "checkpoint_and_decide_exit": ("iteration", "num_floating_point_operations_so_far"),
    "load_checkpoint": ("optimizer", "opt_param_scheduler"),
}  # fmt: skip
CHECKPOINT_FUNCTIONS: Final = ("load_checkpoint", "save_checkpoint")
"""Functions of `megatron.training.training` that checkpoints are loaded and saved with."""
_WRITTEN: Final = re.compile(r"""\bstate_dict\[["'](\w+)["']\]\s*=(?!=)""")
"""A line that adds to what is written to a checkpoint."""
_KNOWN_IN_CHECKPOINTS: Final = frozenset({
    "_model", "args", "checkpoint_version", "iteration", "model", "num_floating_point_operations_so_far",
    "opt_param_scheduler", "optimizer", "rerun_state_machine", "rng_state",
})  # fmt: skip
COUNTED_SAMPLES: Final = ("consumed_train_samples", "skipped_train_samples", "consumed_valid_samples")
"""Arguments in which the loop counts."""
_ARGUMENTS: Final = (
    *COUNTED_SAMPLES, "micro_batch_size", "data_parallel_size", "eval_interval", "exit_interval", "save",
)  # fmt: skip
"""Those that are there when a model is set up."""
_LATER: Final = "do_valid"
"""An argument that the loop sets once its data are there."""
LOSS_MEMORY: Final = ("large_value_counts", "max_values")
"""What the rerun state machine remembers of the losses, to tell which are unexpectedly large."""
VALIDATES: Final = "first_iteration_complete"
"""Whether it looks at losses: not at those of the first iteration of a start; from 0.16 on."""


def loaded(module: str) -> Any:
    """Return a module if it is imported, else None."""
    return sys.modules.get(module)


def checkpoint_exception() -> type[BaseException] | tuple[()]:
    """Return torch's `CheckpointException`, which is no `Exception`, for `isinstance`; () if it is not imported."""
    return getattr(loaded("torch.distributed.checkpoint.api"), "CheckpointException", ())


def destroyers() -> list[tuple[str, Callable[[], object]]]:
    """Return the functions of `DESTROYERS` whose modules are imported, and those of trackers of experts, by name."""
    found = ((name, getattr(loaded(module), name, None)) for module, name in DESTROYERS)
    trackers = ((name, value) for module in _EXPERTS for name, value in _globals(module) if _DESTROYS.fullmatch(name))
    return [(name, function) for name, function in (*found, *trackers) if function is not None]


def _globals(module: str) -> list[tuple[str, Any]]:
    return [] if loaded(module) is None else list(vars(loaded(module)).items())


def accumulated() -> list[tuple[str, Any, str, Any]]:
    """Return those of `ACCUMULATED` that are there: name, owner, attribute, value when empty."""
    found = []
    for module, path, empty in ACCUMULATED:
        *classes, attribute = path.split(".")
        owner = loaded(module)
        for name in classes:
            owner = getattr(owner, name, None)
        if hasattr(owner, attribute):
            found.append((f"{module}.{path}", owner, attribute, empty))
    return found


def destroyers_gone() -> list[str]:
    """Return the functions of `DESTROYERS` that an imported module lacks."""
    imported = ((module, name) for module, name in DESTROYERS if loaded(module) is not None)
    return [f"{module}.{name}" for module, name in imported if not hasattr(loaded(module), name)]


def trackers_gone() -> list[str]:
    """Return the trackers of experts that nothing empties; "the tracker of losses" where none is found."""
    if loaded(_EXPERTS[0]) is None:
        return []
    emptied = {name for name, *_ in accumulated()}
    found = [(module, name) for module in _EXPERTS for name, _ in _globals(module) if _TRACKER.fullmatch(name)]
    left = [
        f"{module}.{name}"
        for module, name in found
        if f"{module}.{name}" not in emptied and not hasattr(loaded(module), f"destroy{name.lower()}")
    ]
    return left if found else [f"{_CORE}.transformer.moe: the tracker of losses"]


def state_gone() -> list[str]:
    """Return the modules of `CORE_STATE`, and with Megatron-LM those of `TRAINING_STATE`, that are not imported."""
    names = (*CORE_STATE, *(TRAINING_STATE if loaded("megatron.training.training") is not None else ()))
    return [name for name in names if loaded(name) is None]


def has_ft_client() -> bool:
    """Return whether Megatron-LM keeps its client of a rank monitor where `ft_client` looks."""
    return hasattr(loaded("megatron.training.ft_integration"), _CLIENT)


def ft_client() -> Any:
    """Return Megatron-LM's client of a rank monitor, None when it has none."""
    return getattr(loaded("megatron.training.ft_integration"), _CLIENT, None)


def straggler_detector() -> Any:
    """Return megatron-core's detector of stragglers, None before it is imported; it is configured once in a process."""
    return getattr(loaded("megatron.core.utils"), "__straggler__", None)


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


def queues_of_modules() -> list[Any]:
    """Return the queues of saves that a module has made when it was imported, whatever their names.

    megatron-core <= 0.16 keeps one for all saves of a process, Megatron-LM another one; their calls are numbered.
    """
    kind = saves_queue_class()
    if not isinstance(kind, type):
        return []
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("megatron.")]
    values = (value for module in modules for value in list(getattr(module, "__dict__", {}).values()))
    return list({id(value): value for value in values if isinstance(value, kind)}.values())


def flag_texts() -> tuple[Any, str]:
    """Return the class, None before 0.16, and the name of its method that reads the help texts of flags."""
    return getattr(loaded("megatron.training.argument_utils"), "ArgumentGroupFactory", None), "_get_field_docstrings"


def build_of_helpers() -> tuple[Any, str]:
    """Return the module, None before it is imported, and the name of its function that builds a library by `make`."""
    return loaded("megatron.core.datasets.utils"), "compile_helpers"


def openers() -> list[tuple[str, Any, str]]:
    """Return, for each of `WHOLE_FILES`, the place from which its writer takes `open`; None if there is none.

    From 0.19 on it is an attribute of an object, which the writers share.
    """
    checkpointing, core = loaded("megatron.training.checkpointing"), loaded("megatron.core.dist_checkpointing.core")
    return [
        (TRACKER, *_opener(checkpointing, "open_file")),
        ("ft_state.json", *_opener(loaded("megatron.training.ft_integration"), "open")),
        ("metadata.json", *_opener(core, "open")),
    ]


def _opener(module: Any, name: str) -> tuple[Any, str]:
    """Return where the functions of a module take `open` from."""
    shared = getattr(module, "maybe_msc", None)
    if shared is not None and mentions(module, "maybe_msc", "open"):
        return shared, "open"
    return (module if module is not None and mentions(module, name) else None), name


def writes_common_state() -> bool:
    """Return whether a function of megatron-core, other than those of `common_savers`, writes `common.pt`."""
    modules = (loaded(f"{_CORE}.dist_checkpointing.{name}") for name in ("serialization", "strategies.common"))
    return any(module is not None and mentions(module, "COMMON_STATE_FNAME", "save") for module in modules)


def common_savers() -> list[tuple[Any, str]]:
    """Return the places from which megatron-core <= 0.18 takes the function that writes `common.pt`."""
    strategies = loaded("megatron.core.dist_checkpointing.strategies.common")
    found = (
        loaded("megatron.core.dist_checkpointing.serialization"),
        getattr(strategies, "TorchCommonSaveStrategy", None),
    )
    return [(home, "save_common") for home in found if hasattr(home, "save_common")]


def chained_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers that an optimizer of megatron-core steps, each of one of torch; empty for any other."""
    base = getattr(loaded(f"{_CORE}.optimizer.optimizer"), "MegatronOptimizer", None)
    if not isinstance(base, type) or not isinstance(optimizer, base):
        return []
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def is_known_optimizer(optimizer: Any) -> bool:
    """Return whether it is known what an optimizer of megatron-core, which is no chain, does at a step."""
    return type(optimizer).__name__ in _OPTIMIZERS and type(optimizer).__module__.startswith(f"{_CORE}.optimizer.")


def is_distributed(optimizers: Iterable[Any]) -> bool:
    """Return whether a rank has only a part of the optimizer state, and gathers the parameters after a step."""
    return any(type(each).__name__ == "DistributedOptimizer" for each in optimizers)


def is_data_parallel(chunk: Any) -> bool:
    """Return whether a chunk of a model is wrapped by megatron-core's own data parallelism."""
    return type(chunk) is getattr(loaded(f"{_CORE}.distributed"), "DistributedDataParallel", None)


def is_of_experts(parameter: Any) -> bool:
    """Return whether a parameter is one of experts, which are not the same on all data parallel ranks."""
    return not getattr(parameter, "allreduce", True)


def parameter_gathers(model: Iterable[Any]) -> tuple[Any, ...]:
    """Return the objects whose `start_param_sync` gathers the parameters of a model after a step."""
    return tuple(group for chunk in model for group in chunk.bucket_groups)


def grad_scalers(optimizers: Iterable[Any]) -> list[Any]:
    """Return the scalers of gradients; optimizers may share one."""
    scalers = (getattr(each, "grad_scaler", None) for each in optimizers)
    return list({id(each): each for each in scalers if each is not None}.values())


def rng_tracker() -> Any:
    """Return the tracker of the random numbers of model parallel ranks."""
    return loaded(f"{_CORE}.tensor_parallel.random").get_cuda_rng_tracker()


def part_of_model(is_sharded: bool) -> dict[str, tuple[int, int]]:
    """Return which part of a model this rank has.

    Args:
        is_sharded: whether each data parallel rank has its own part of the optimizer state.
    """
    state = loaded(f"{_CORE}.parallel_state")
    part = {
        "tensor parallel rank": (state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_world_size()),
        "pipeline stage": (state.get_pipeline_model_parallel_rank(), state.get_pipeline_model_parallel_world_size()),
    }
    if is_sharded:
        part["data parallel rank"] = (state.get_data_parallel_rank(), state.get_data_parallel_world_size())
    return {name: (number, size) for name, (number, size) in part.items() if size > 1}


def parallelism_besides() -> list[str]:
    """Return the names of the kinds of parallelism, besides those of `part_of_model`, that have more than one rank."""
    state = loaded(f"{_CORE}.parallel_state")
    sizes = {
        "context": state.get_context_parallel_world_size(),
        "expert": state.get_expert_model_parallel_world_size(),
        "virtual pipeline": state.get_virtual_pipeline_model_parallel_world_size() or 1,
    }
    return [name for name, size in sizes.items() if size > 1]


def names_gone_for_live_state() -> str:
    """Return a name that a training from memory needs and that this megatron-core does not have; "" if it has all."""
    optimizers, buffers = loaded(f"{_CORE}.optimizer.optimizer"), loaded(f"{_CORE}.distributed.param_and_grad_buffer")
    tracker = getattr(loaded(f"{_CORE}.tensor_parallel.random"), "CudaRNGStatesTracker", None)
    needed = {
        "MixedPrecisionOptimizer.step_with_ready_grads": getattr(optimizers, "MixedPrecisionOptimizer", None),
        "FP32Optimizer.step_with_ready_grads": getattr(optimizers, "FP32Optimizer", None),
        "ChainedOptimizer.step_with_ready_grads": getattr(optimizers, "ChainedOptimizer", None),
        "_ParamAndGradBucketGroup.start_param_sync": getattr(buffers, "_ParamAndGradBucketGroup", None),
        "CudaRNGStatesTracker.get_states": tracker,
    }
    return next((name for name, owner in needed.items() if not hasattr(owner, name.partition(".")[2])), "")


def loop_gone(training: Any) -> list[str]:
    """Return the names of Megatron-LM's loop that a training from memory needs and that its module does not have."""
    gone = [name for name in LOOP if not hasattr(training, name) or not mentions(training, name)]
    gone += [name for name in _CALLED if not hasattr(training, name)]
    gone += [name for name in (_LATER,) if not mentions(training, name)]
    for function, parameters in _PARAMETERS.items():
        if function not in gone:
            given = inspect.signature(getattr(training, function)).parameters
            gone += [f"{function}({name})" for name in parameters if name not in given]
    return gone


def kept_besides(training: Any) -> list[str]:
    """Return the names of what this Megatron-LM writes to a checkpoint, and those that are known do not."""
    functions = filter(None, (getattr(training, name, None) for name in CHECKPOINT_FUNCTIONS))
    modules = {inspect.getmodule(inspect.unwrap(each)) for each in functions} - {None, training}
    keys = set[str]()
    for module in filter(None, modules):
        with suppress(OSError):  # without its source, nothing is known
            keys.update(_WRITTEN.findall(inspect.getsource(module)))
    return sorted(keys - _KNOWN_IN_CHECKPOINTS)


def arguments_gone_for_live_state(args: Any) -> list[str]:
    """Return the arguments of Megatron-LM that a training from memory needs and that are not there."""
    return [name for name in _ARGUMENTS if not hasattr(args, name)]
