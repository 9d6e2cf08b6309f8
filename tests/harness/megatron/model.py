"""A tiny GPT of megatron-core, its optimizer, its data, one step of training, and what is around the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

from tests.harness.megatron.plan import Plan

__all__ = ["Training", "begin", "end"]

LENGTH, WORDS, BATCH, MICROBATCHES = 32, 64, 2, 2
SEED = 123
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def begin(plan: Plan) -> Training:
    """Make the process groups and the model of an iteration."""
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(plan.tp, plan.pp)
    torch.manual_seed(SEED)
    model_parallel_cuda_manual_seed(SEED)
    return Training(plan)


def end() -> None:
    """Drop the process groups of an iteration whose training is done."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


class Training:
    """The model of one rank, and its steps."""

    def __init__(self, plan: Plan) -> None:
        config = TransformerConfig(
            num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True,
            pipeline_dtype=DTYPES[plan.precision], params_dtype=DTYPES[plan.precision], bf16=plan.precision == "bf16",
            fp16=plan.precision == "fp16", hidden_dropout=plan.dropout, attention_dropout=plan.dropout,
            tensor_model_parallel_size=plan.tp, pipeline_model_parallel_size=plan.pp,
            gradient_accumulation_fusion=False, bias_activation_fusion=False, masked_softmax_fusion=False,
            bias_dropout_fusion=False, finalize_model_grads_func=finalize_model_grads,
        )  # fmt: skip
        model = GPTModel(
            config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=WORDS,
            max_sequence_length=LENGTH, pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(), parallel_output=True,
        )  # fmt: skip
        ours = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=plan.distributed
        )
        wrapped = model if plan.precision == "fp32" else Float16Module(config, model)
        self.model = DistributedDataParallel(config, ours, wrapped)
        config.no_sync_func = self.model.no_sync
        self.optimizer = self._optimizer(plan)
        if plan.precision == "fp16":
            config.grad_scale_func = self.optimizer.scale_loss
        self.forward_backward = get_forward_backward_func()
        self.mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
        self.positions = torch.arange(LENGTH)[None].expand(BATCH, -1)

    def _optimizer(self, plan: Plan) -> Any:
        if plan.optimizer == "torch":
            return torch.optim.Adam(self.model.parameters(), lr=3e-3)
        if plan.optimizer == "sgd":
            return torch.optim.SGD(self.model.parameters(), lr=0.1)
        config = OptimizerConfig(
            optimizer="adam", lr=3e-3, min_lr=1e-5, clip_grad=1.0, use_distributed_optimizer=plan.distributed,
            bf16=plan.precision == "bf16", fp16=plan.precision == "fp16", params_dtype=DTYPES[plan.precision],
            initial_loss_scale=2.0**40, loss_scale_window=3, hysteresis=1,
        )  # fmt: skip
        return get_megatron_optimizer(config, [self.model])

    def step(self, number: int, ready: Callable[[], object] = lambda: None) -> float | None:
        """Trains on the batch of this number; returns the loss where the last stage is.

        Args:
            number: of the batch.
            ready: is called before the optimizer steps.
        """
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        reduced = self.forward_backward(
            forward_step_func=self.forward, data_iterator=batches(number), model=[self.model],
            num_microbatches=MICROBATCHES, seq_length=LENGTH, micro_batch_size=BATCH, forward_only=False,
        )  # fmt: skip
        if isinstance(self.optimizer, torch.optim.Optimizer):
            for parameter in self.model.parameters():
                parameter.grad = parameter.main_grad.to(parameter.dtype)
        ready()
        stepped = self.optimizer.step()
        self.updated = bool(stepped[0]) if stepped else True
        losses = [each["loss"].item() for each in reduced]
        return sum(losses) / len(losses) if losses else None

    def weights(self) -> float:
        """The sum of this rank's weights."""
        return sum(parameter.double().sum().item() for parameter in self.model.parameters())

    def forward(self, data: Iterator[tuple[torch.Tensor, torch.Tensor]], model: Any) -> tuple[Any, Any]:
        words, labels = next(data)
        return model(words, self.positions, self.mask, labels=labels), loss_of


def loss_of(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.float().mean()
    return loss, {"loss": loss.detach().clone()}


def batches(step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The micro batches of a step, for this data parallel rank."""
    generator = torch.Generator().manual_seed(1000 * step + parallel_state.get_data_parallel_rank())
    while True:
        starts = torch.randint(0, WORDS, (BATCH, 1), generator=generator)
        text = (torch.arange(LENGTH + 1)[None] + starts) % WORDS
        yield text[:, :-1].contiguous(), text[:, 1:].contiguous()
