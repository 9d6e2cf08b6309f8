"""A rank that trains a mixture of experts on megatron-core, and logs the load balancing loss as Megatron-LM does.

Rank 1 fails in the first iteration after the forward passes of a step, whose losses are recorded by then.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys

import nvrx_megatron
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

from examples.megatron import on_cpu
from nvrx_core.inprocess import CallWrapper
from tests.harness.megatron.model import BATCH, LENGTH, WORDS, batches
from tests.harness.megatron.plan import Plan
from tests.harness.process.workers.record import Record

__all__: list[str] = []

plan = Plan.of_environment()
record = Record.of_environment()
me = int(os.environ["RANK"])
BREAKS_AT = 2
EXPERTS, LAYERS = 2, 2


def train(call: CallWrapper) -> None:
    record("enter", iteration=call.iteration, state=nvrx_megatron.state_report())
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(plan.tp)
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True, hidden_dropout=0.0,
        attention_dropout=0.0, tensor_model_parallel_size=plan.tp, gradient_accumulation_fusion=False,
        bias_activation_fusion=False, masked_softmax_fusion=False, bias_dropout_fusion=False, num_moe_experts=EXPERTS,
        moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=0.1, moe_grouped_gemm=False,
        moe_token_dispatcher_type="allgather", sequence_parallel=False, add_bias_linear=False,
    )  # fmt: skip
    model = GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_local_spec(num_experts=EXPERTS), vocab_size=WORDS,
        max_sequence_length=LENGTH,
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
    positions = torch.arange(LENGTH)[None].expand(BATCH, -1)
    for step in range(plan.steps):
        words, labels = next(batches(step))
        optimizer.zero_grad()
        loss = model(words, positions, mask, labels=labels).float().mean()
        if step == BREAKS_AT and call.iteration == 0:
            record("recorded")
            if me == 1:
                record.await_others(1, "recorded")
                raise RuntimeError("injected after the forward pass")
            dist.barrier()
        loss.backward()
        optimizer.step()
        tracked: dict[str, torch.Tensor] = {}
        moe_utils.track_moe_metrics(1.0, step, total_loss_dict=tracked, num_layers=LAYERS)
        balancing = {name: float(value) for name, value in tracked.items()}
        record("logged", iteration=call.iteration, step=step, loss=float(loss), **balancing)
        call.ping()
        call.progress(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    on_cpu.install()
    moe_utils.te_general_gemm = None  # core_v0.16.1 reads it without Transformer Engine as well, where nothing sets it
    sys.argv[1:] = plan.command_line()
    args = nvrx_megatron.add_arguments(argparse.ArgumentParser()).parse_args()
    nvrx_megatron.inprocess_restart(train, args)()
