"""A tiny GPT of megatron-core over bytes: the model, one step of its training, and its state for checkpoints."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # megatron-core says what it lacks on a CPU
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.transformer.transformer_config import TransformerConfig

import nvrx_megatron

LENGTH, BATCH, BYTES = 64, 8, 256


def build(args: argparse.Namespace) -> tuple[DistributedDataParallel, object]:
    """Build the model and its optimizer."""
    config = TransformerConfig(
        num_layers=2, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True,
        pipeline_dtype=torch.float32, hidden_dropout=0.0, attention_dropout=0.0,
        tensor_model_parallel_size=args.tensor_parallel, gradient_accumulation_fusion=False,
        bias_activation_fusion=False, masked_softmax_fusion=False, bias_dropout_fusion=False,
        finalize_model_grads_func=finalize_model_grads,
    )  # fmt: skip
    model = GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=BYTES, max_sequence_length=LENGTH
    )
    if torch.cuda.is_available():
        model.cuda()
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model)
    config.no_sync_func = wrapped.no_sync
    return wrapped, get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=3e-3, clip_grad=1.0), [wrapped])


def batches(text: torch.Tensor, step: int) -> Iterator[torch.Tensor]:
    """Return the bytes for a step, the same whenever the step is done; data parallel ranks have different ones."""
    generator = torch.Generator().manual_seed(1000 * step + parallel_state.get_data_parallel_rank())
    starts = torch.randint(0, len(text) - LENGTH - 1, (BATCH,), generator=generator)
    batch = torch.stack([text[start : start + LENGTH + 1] for start in starts])
    yield batch.cuda() if torch.cuda.is_available() else batch


def one_step(model: DistributedDataParallel, optimizer: object, data: Iterator[torch.Tensor]) -> float:
    """Do one step of the training; returns its loss."""
    model.zero_grad_buffer()
    optimizer.zero_grad()
    mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)

    def forward(batches: Iterator[torch.Tensor], model: DistributedDataParallel) -> tuple[torch.Tensor, object]:
        batch = next(batches)
        positions = torch.arange(LENGTH, device=batch.device).expand(BATCH, -1)
        output = model(batch[:, :-1].contiguous(), positions, mask, labels=batch[:, 1:].contiguous())
        return output, lambda output: (output.mean(), {"loss": output.detach().mean()})

    reduced = get_forward_backward_func()(
        forward_step_func=forward, data_iterator=data, model=[model], num_microbatches=1, seq_length=LENGTH,
        micro_batch_size=BATCH, forward_only=False,
    )  # fmt: skip
    optimizer.step()
    return reduced[0]["loss"].item()


def load(checkpoints: nvrx_megatron.AtomicCheckpoint, model: DistributedDataParallel, optimizer: object) -> int:
    """Load the newest checkpoint; returns the step to go on with."""
    found = checkpoints.latest()
    if found is None:
        return 0
    sharded = model.module.sharded_state_dict()
    state = {"model": sharded, "optimizer": optimizer.sharded_state_dict(sharded, is_loading=True)}
    state = dist_checkpointing.load(state, str(found[1]))
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return found[0]


def save(
    checkpoints: nvrx_megatron.AtomicCheckpoint, step: int, model: DistributedDataParallel, optimizer: object
) -> None:
    """Save a checkpoint, which exists as a whole or not at all."""
    sharded = model.module.sharded_state_dict()
    state = {"model": sharded, "optimizer": optimizer.sharded_state_dict(sharded)}
    checkpoints.save(step, lambda folder: dist_checkpointing.save(state, str(folder)))
