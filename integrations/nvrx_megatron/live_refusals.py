"""What of a Megatron training cannot be kept in memory, or has not been shown to be exact: why, in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from nvrx_megatron import internals

__all__ = ["NOT_ON_GPU", "refused_arguments", "refused_objects"]

_SET: Final = (
    "fp8", "fp4", "fp8_param_gather", "optimizer_cpu_offload", "offload_optimizer_states",
    "use_precision_aware_optimizer", "overlap_grad_reduce", "overlap_param_gather",
    "overlap_param_gather_with_optimizer_step", "num_experts", "moe_use_upcycling", "use_torch_fsdp2",
    "use_custom_fsdp", "use_megatron_fsdp", "enable_cuda_graph", "external_cuda_graph", "optimizer_cuda_graph",
    "perform_rl_step", "qk_clip", "ckpt_convert_format", "hybrid_context_parallel", "iterations_to_skip",
    "phase_transition_iterations", "decrease_batch_size_if_needed", "full_validation", "multiple_validation_sets",
    "modelopt_enabled", "export_kd_teacher_load", "vision_pretraining", "skip_train", "freeze_all_layers",
    "virtual_pipeline_model_parallel_size", "step_batch_size_schedule", "use_layer_wise_distributed_optimizer",
    "te_rng_tracker", "inference_rng_tracker", "log_straggler", "multi_latent_attention", "mtp_num_layers",
    "adlr_autoresume", "non_persistent_ckpt_type", "finetune", "pretrained_checkpoint", "sft",
    "data_parallel_random_init", "dataloader_save", "fim_data", "logits_load_dir", "logits_save_dir",
    "init_model_with_meta_device",
    "encoder_tensor_model_parallel_size", "encoder_pipeline_model_parallel_size",
)  # fmt: skip
"""Options that are refused if they are given."""
_OTHER: Final[Mapping[str, tuple[Any, ...]]] = {
    "transformer_impl": ("local",),
    "cuda_graph_impl": ("none", None),
    "dataloader_type": ("single", None),
    "rerun_mode": ("disabled", "validate_results", None),
    "optimizer": ("adam", "sgd"),
    "context_parallel_size": (1,),
    "expert_model_parallel_size": (1,),
    "num_distributed_optimizer_instances": (1,),
    "gtp_weight_remat_size": (1,),
}
"""Options that are refused with any other value."""
_OF_DDP: Final[Mapping[str, Any]] = {
    "overlap_grad_reduce": False, "overlap_param_gather": False, "num_distributed_optimizer_instances": 1,
}  # fmt: skip
"""Options of megatron-core's DDP that are refused with any other value, as loops of one's own give them."""
NOT_ON_GPU: Final = "it has not run on a GPU"
MAX_BUFFERS: Final = 1 << 20
"""Bytes: those that are persistent go with each vote."""
_OPTIMIZERS: Final = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def refused_arguments(args: Any) -> str:
    """Return why a training of Megatron-LM with these arguments is not kept in memory; "" if it is.

    It needs no object: what is known before the script runs is known on all ranks alike.
    """
    if getattr(args, "distributed_backend", "gloo") != "gloo":
        return NOT_ON_GPU
    for name in _SET:
        if getattr(args, name, None):
            return f"--{name.replace('_', '-')} has not been shown to be exact"
    for name, values in _OTHER.items():
        if hasattr(args, name) and getattr(args, name) not in values:
            return f"--{name.replace('_', '-')} {getattr(args, name)} has not been shown to be exact"
    return ""


def refused_objects(model: Sequence[torch.nn.Module], optimizer: Any) -> str:
    """Return why a model and its optimizer are not kept in memory; "" if they are."""
    try:
        if gone := internals.names_gone_for_live_state():
            return f"this megatron-core does not have {gone}"
        if besides := internals.parallelism_besides():
            return f"{' and '.join(besides)} parallelism has not been shown to be exact"
        return _refused_model(model) or _refused_optimizer(optimizer)
    except Exception as error:  # boundary: modules of the user, and of a Megatron that has changed
        return f"the model cannot be examined: {type(error).__name__}: {error}"


def _refused_model(model: Sequence[torch.nn.Module]) -> str:
    if len(model) != 1:
        return f"the model has {len(model)} chunks on a rank, which has not been shown to be exact"
    if not internals.is_data_parallel(model[0]):
        return f"it is not known how {type(model[0]).__name__} keeps parameters: only megatron-core's own DDP is"
    config = model[0].ddp_config
    if name := next((name for name, usual in _OF_DDP.items() if getattr(config, name, usual) != usual), ""):
        return f"{name}={getattr(config, name)} of DDP has not been shown to be exact"
    size = sum(
        each.nbytes for module in model[0].modules() for name, each in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    )  # fmt: skip
    if size > MAX_BUFFERS:
        return f"{size / (1 << 20):.1f} MB of buffers would be copied to all ranks at each step"
    for each in model[0].modules():
        is_own = type(each).get_extra_state is not torch.nn.Module.get_extra_state
        if is_own and each.get_extra_state() is not None:  # megatron-core's own layers have one that is None
            return f"{type(each).__name__} has an extra state, which is not copied at each step"
    reasons = {
        NOT_ON_GPU: any(each.device.type != "cpu" for each in model[0].parameters()),
        "experts have not been shown to be exact": any(map(internals.is_of_experts, model[0].parameters())),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _refused_optimizer(optimizer: Any) -> str:
    layers = internals.chained_optimizers(optimizer)
    if not layers:
        return f"it is not known how {type(optimizer).__name__} steps"
    for each in layers:
        if not internals.is_known_optimizer(each):
            return f"it is not known how {type(each).__name__} steps"
        if getattr(each, "is_stub_optimizer", False):
            return "a rank has no parameters to train"
        if type(each.optimizer) not in _OPTIMIZERS:
            kind = type(each.optimizer)
            return f"{kind.__module__}.{kind.__name__} has not been shown to keep its state where it is looked for"
    return ""
