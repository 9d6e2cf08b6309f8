"""The training loop."""

import contextlib
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.num_microbatches_calculator import (
    destroy_num_microbatches_calculator,
    init_num_microbatches_calculator,
)
from megatron.core.rerun_state_machine import destroy_rerun_state_machine, initialize_rerun_state_machine
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from tests.harness.megatron.hooks import entered, in_evaluation, left_with, stepped, training_of

with contextlib.suppress(ImportError):
    import nvidia_resiliency_ext.inprocess  # noqa: F401 - as Megatron-LM does before its own module of restarts

from . import arguments, ft_integration
from .async_utils import maybe_finalize_async_save
from .checkpointing import load_checkpoint, save_checkpoint
from .global_vars import destroy_global_vars, get_args


def destroy_global_state():
    destroy_global_vars()
    destroy_num_microbatches_calculator()
    parallel_state.destroy_model_parallel()
    destroy_rerun_state_machine()


def pretrain(store=None, inprocess_call_wrapper: Any | None = None):
    if inprocess_call_wrapper is not None:
        store = dist.PrefixStore(str(inprocess_call_wrapper.iteration), store)
    entered()
    ft_integration.setup()
    if arguments.SHAPE == "0.16":
        arguments.parse_and_validate_args()
    args = get_args()
    assert args.rank == int(os.environ["RANK"]), "the rank in the arguments is that of another iteration"
    dist.init_process_group("gloo", store=store, rank=args.rank, world_size=args.world_size)
    parallel_state.initialize_model_parallel(args.world_size)
    initialize_rerun_state_machine()
    init_num_microbatches_calculator(args.rank, None, 4, 2, 1)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    torch.manual_seed(123)
    model_parallel_cuda_manual_seed(123)
    training = training_of(args.world_size)
    train(args, training, load_checkpoint(training))
    ft_integration.shutdown()
    left_with(training)
    dist.barrier()
    dist.destroy_process_group()


def train(args, training, iteration):
    while iteration < args.train_iters:
        ft_integration.on_checkpointing_start()
        maybe_finalize_async_save(blocking=False)
        ft_integration.on_checkpointing_end(is_async_finalization=True)
        args.curr_iteration = iteration
        ft_integration.on_training_step_start()
        loss = train_step(training, iteration)
        ft_integration.on_training_step_end()
        stepped(iteration, loss)
        iteration += 1
        if args.eval_interval and iteration % args.eval_interval == 0:
            evaluate()
        if args.save and iteration % args.save_interval == 0:
            save_checkpoint(iteration, training)
        if iteration == args.exit_at:
            sys.exit()


def train_step(training, iteration):
    return training.step(iteration)


def evaluate():
    for _ in range(3):
        ft_integration.on_eval_step_start()
        in_evaluation()
        ft_integration.on_eval_step_end()
