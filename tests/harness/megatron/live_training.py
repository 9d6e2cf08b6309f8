"""A rank that trains a tiny GPT on megatron-core from memory, with faults at drawn points.

`NVRX_TEST_LIVE` has, as JSON: `faults` (how many iterations have one), `seed`, `kinds` (`exception`, `kill`,
`asynchronous`), `points`, `least` (no kill below so many ranks), `drifts` (whether the loop counts otherwise than it
says), `seeds` (each rank begins with other weights), `stray` (a step that the loop has not begun), `stuck` (it begins
all by this number) and `replicating` (up to how many ranks votes carry the local state of all).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import nvrx_megatron
import torch
import torch.distributed as dist
from nvrx_megatron import live_state, restart

from examples.megatron import on_cpu
from nvrx_core.inprocess import CallWrapper
from tests.harness.megatron.plan import Plan
from tests.harness.process.workers.live_training import PLAN as FAULTS, Faults
from tests.harness.process.workers.record import Record, usage

__all__ = ["main", "train"]

plan = Plan.of_environment()
record = Record.of_environment()
faults = Faults()
SAMPLES = 8


class Count:
    """The counters of the loop: its step, its samples, and the schedule of the learning rate."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.step, self.samples = scheduler, 0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "samples": self.samples, "schedule": self.scheduler.num_steps}

    def after_step(self, updated: bool) -> dict[str, Any]:
        lead = 1 if FAULTS.get("drifts") else 0
        schedule = self.scheduler.num_steps + (SAMPLES if updated else 0)
        return {"step": self.step + 1 + lead, "samples": self.samples + SAMPLES, "schedule": schedule}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.samples, self.scheduler.num_steps = state["step"], state["samples"], state["schedule"]
        self.scheduler.step(increment=0)


def train(live: nvrx_megatron.MegatronLiveState, call: CallWrapper) -> None:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    from tests.harness.megatron.model import begin, end

    training = begin(plan)
    rank, world = dist.get_rank(), dist.get_world_size()
    faults.begin(call, rank, world)
    faults("build")
    random.seed(rank)
    if FAULTS["seeds"]:
        next(iter(training.model.parameters())).data += rank
    scheduler = OptimizerParamScheduler(
        training.optimizer, init_lr=0.0, max_lr=3e-3, min_lr=1e-5, lr_warmup_steps=16, lr_decay_steps=400,
        lr_decay_style="cosine", start_wd=0.01, end_wd=0.1, wd_incr_steps=400, wd_incr_style="linear",
    )  # fmt: skip
    watch(training)
    count = Count(scheduler)
    first = live.resume([training.model], training.optimizer, count)
    behind = live.is_behind_step
    needs = () if live._live is None else live._live.shard
    record("resumed", iteration=call.iteration, rank=rank, step=first, behind=behind, refusal=live.refusal, needs=needs,
           **usage())  # fmt: skip
    torch.rand(3 if first is None else 5)  # as what builds the data does
    random.random()
    if first is None:
        first = 0
        live.start(first)
    faults("resumed")
    for step in range(first, plan.steps):
        if step != FAULTS.get("stray"):
            live.begin(FAULTS.get("stuck", step))
        assert (count.step, count.samples) == (step, SAMPLES * step), (count.step, count.samples, step)
        faults("data")
        loss = training.step(step, lambda: faults("ready"))
        faults("committed")
        updated = training.updated
        if updated:
            scheduler.step(increment=SAMPLES)
        count.step, count.samples = step + 1, count.samples + SAMPLES
        record("step", iteration=call.iteration, step=step, rank=rank, loss=loss)
        call.progress(step)
        faults("tail")
    faults.inside = False
    dist.barrier()
    record("end", iteration=call.iteration, rank=rank, **digests(training, scheduler))
    end()


def watch(training: Any) -> None:
    """Let faults come up in the forward pass, in the optimizer, and in the gather of parameters."""
    from megatron.core.distributed import param_and_grad_buffer as buffers

    for each in getattr(training.optimizer, "chained_optimizers", [training.optimizer]):
        each.optimizer.register_step_pre_hook(lambda *_: faults("advance"))
        each.optimizer.register_step_post_hook(lambda *_: faults("advanced"))
    training.model.register_forward_pre_hook(lambda *_: faults("forward"))
    groups = buffers._ParamAndGradBucketGroup
    if not hasattr(groups, "start_unwatched"):
        groups.start_unwatched = groups.start_param_sync

        def start_param_sync(self: Any, *args: Any, **kwargs: Any) -> None:
            faults("gather")
            self.start_unwatched(*args, **kwargs)
            faults("gathered")

        groups.start_param_sync = start_param_sync


def digests(training: Any, scheduler: Any) -> dict[str, Any]:
    """What the training has at its end."""
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

    layers = getattr(training.optimizer, "chained_optimizers", [training.optimizer])
    scales = [each.grad_scaler.state_dict() for each in layers if getattr(each, "grad_scaler", None)]
    return {
        "weights": digest(training.model.parameters()), "state": digest(states(layers)),
        "random": digest([torch.get_rng_state(), *get_cuda_rng_tracker().get_states().values()]),
        "python": str(random.random()), "schedule": str(scheduler.state_dict()), "scales": str(scales),
        "groups": str([[{**group, "params": 0} for group in each.optimizer.param_groups] for each in layers]),
    }  # fmt: skip


def states(layers: Any) -> Iterator[torch.Tensor]:
    for layer in layers:
        for group in layer.optimizer.param_groups:
            for parameter in group["params"]:
                yield parameter
                yield from layer.optimizer.state[parameter].values()


def digest(tensors: Any) -> str:
    found = hashlib.sha256()
    for each in tensors:
        found.update(each.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def main(around: Callable[[Callable[[], None], CallWrapper], None] = lambda train, call: train()) -> None:
    """Run the training; `around` runs it in each iteration."""
    torch.set_num_threads(1)
    on_cpu.install()
    parser = nvrx_megatron.add_arguments(argparse.ArgumentParser())
    sys.argv[1:] = plan.command_line()
    args = parser.parse_args()
    live_state.MAX_REPLICATING = FAULTS.get("replicating", 128)  # type: ignore[misc]
    live = nvrx_megatron.MegatronLiveState(args)

    def restarted(call_wrapper: CallWrapper) -> None:
        around(lambda: train(live, call_wrapper), call_wrapper)

    restart.NO_PROGRESS_LIMIT = 1 << 20  # type: ignore[misc]  # faults are drawn, and may be equal
    nvrx_megatron.inprocess_restart(restarted, args)()
    record("exit", pid=os.getpid())


if __name__ == "__main__":
    main()
