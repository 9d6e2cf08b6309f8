"""A training that is written against nvidia-resiliency-ext: its names, its plug-ins, its way to find a port.

Rank 1 fails in the first iteration. Each line of output that begins with a brace is a JSON object.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

os.environ["TORCH_CPP_LOG_LEVEL"] = "error"

import nvidia_resiliency_ext
import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.inprocess.nested_restarter import (
    NestedRestarterAborted,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingStarting,
)

STEPS = 6
CHECKPOINT = Path(os.environ["NVRX_TEST_GATE"]).with_name("model.pt")
finalized: list[int] = []


def say(event: str, **fields: object) -> None:
    line = json.dumps({"event": event, "initial_rank": INITIAL_RANK, **fields})
    os.write(1, f"{line}\n".encode())


class KeepsCount(inprocess.initialize.Initialize):
    def __call__(self, state: inprocess.FrozenState) -> inprocess.FrozenState:
        say("initialize", iteration=state.iteration, world=state.world_size, mode=state.mode.name)
        return state


def destroy_global_state(what: str) -> None:
    finalized.append(len(what))


@inprocess.Wrapper(
    store_kwargs={
        "timeout": datetime.timedelta(seconds=60),
        "port": int(os.environ["MASTER_PORT"]) + 1,
    },
    initialize=inprocess.Compose(
        NestedRestarterHandlingCompleted(),
        KeepsCount(),
        inprocess.initialize.RetryController(max_iterations=3, min_world_size=2),
    ),
    abort=inprocess.Compose(
        inprocess.abort.AbortTransformerEngine(),
        inprocess.abort.AbortTorchDistributed(),
        NestedRestarterHandlingStarting(),
    ),
    finalize=inprocess.finalize.ThreadedFinalize(
        timeout=datetime.timedelta(seconds=20), fn=destroy_global_state, args=("model",)
    ),
    health_check=inprocess.Compose(
        inprocess.health_check.CudaHealthCheck(timeout=datetime.timedelta(seconds=10)),
        inprocess.health_check.FaultCounter(max_rank_faults=2),
    ),
    rank_assignment=inprocess.Compose(
        inprocess.rank_assignment.ActivateAllRanks(),
        inprocess.rank_assignment.ShiftRanks(),
        inprocess.rank_assignment.FilterCountGroupedByKey(
            key_or_fn=lambda state: state.rank // 2,
            condition=lambda count: count == 2,
        ),
    ),
    completion=NestedRestarterFinalized(),
    terminate=NestedRestarterAborted(),
    heartbeat_interval=datetime.timedelta(seconds=1),
    heartbeat_timeout=datetime.timedelta(seconds=30),
    soft_timeout=datetime.timedelta(seconds=40),
    hard_timeout=datetime.timedelta(seconds=60),
    barrier_timeout=datetime.timedelta(seconds=120),
    completion_timeout=datetime.timedelta(seconds=120),
    monitor_process_interval=datetime.timedelta(seconds=1),
    monitor_thread_interval=datetime.timedelta(seconds=1),
    progress_watchdog_interval=datetime.timedelta(seconds=1),
    last_call_wait=datetime.timedelta(seconds=0),
    termination_grace_time=datetime.timedelta(seconds=1),
)
def train(steps: int, call_wrapper: inprocess.CallWrapper | None = None) -> float:
    assert call_wrapper is not None
    torch.manual_seed(call_wrapper.iteration)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()
    model = torch.nn.Linear(4, 1)
    first = 0
    if CHECKPOINT.exists():
        checkpoint = torch.load(CHECKPOINT)
        model.load_state_dict(checkpoint["model"])
        first = checkpoint["step"]
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    say("enter", iteration=call_wrapper.iteration, first=first)
    for step in range(first, steps):
        optimizer.zero_grad()
        ddp(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
        call_wrapper.ping()
        if step == 2 and call_wrapper.iteration == 0:
            dist.barrier()
            if rank == 1:
                raise RuntimeError("a fault of the first iteration")
        if rank == 0:
            with call_wrapper.atomic():
                torch.save({"model": model.state_dict(), "step": step + 1}, f"{CHECKPOINT}.new")
                os.replace(f"{CHECKPOINT}.new", CHECKPOINT)
    dist.destroy_process_group()
    return float(model.weight.sum())


if __name__ == "__main__":
    INITIAL_RANK = int(os.environ["RANK"])
    weight = train(STEPS)
    say("done", weight=weight, finalized=finalized, version=nvidia_resiliency_ext.__version__)
