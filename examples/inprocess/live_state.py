"""No step is lost: after a fault, the training goes on from the memory of its ranks.

    ft_launcher --nproc-per-node 2 --max-restarts 3 examples/inprocess/live_state.py --folder run --fault

With `--fault`, rank 1 fails in step 70, 20 steps behind the last checkpoint: both ranks go on with step 70. The
checkpoint is for what memory cannot do: a job that is started again, and a shard that nobody holds any more.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nvrx_core import inprocess

Stateful = torch.nn.Module | torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler
live = inprocess.LiveState()  # outside of the function: it outlives an iteration


@inprocess.Wrapper()
def train(options: argparse.Namespace, call_wrapper: inprocess.CallWrapper) -> None:
    dist.init_process_group("gloo")
    rank, file = dist.get_rank(), options.folder / "checkpoint.pt"
    torch.manual_seed(1)  # the same weights on all ranks
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)

    def advance() -> None:  # one step, without any other rank
        optimizer.step()
        scheduler.step()

    first = live.resume(model, optimizer, advance, shared={"scheduler": scheduler})
    if first is None:  # nothing in memory: the job has just started
        first = load(file, model, optimizer, scheduler)
        live.start(first)
    print(f"rank {rank} goes on with step {first}", flush=True)

    ddp = DistributedDataParallel(model, init_sync=False)
    for step in range(first, options.steps):
        if step % 50 == 0 and rank == 0:
            with call_wrapper.atomic():
                save(file, step, model, optimizer, scheduler)
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + rank)  # the data of a step
        x = torch.randn(64, 8, generator=generator)
        loss = (ddp(x) - x.sum(1, keepdim=True)).square().mean()
        if options.fault and (rank, step, call_wrapper.iteration) == (1, 70, 0):
            raise RuntimeError("a fault, to show a restart")
        loss.backward()
        live.commit(step)  # a vote of all ranks, then advance()
        optimizer.zero_grad()
    print(f"rank {rank} has done {options.steps} steps, with a loss of {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


def save(file: Path, step: int, *objects: Stateful) -> None:
    """Write the state before `step`; a rank that dies meanwhile leaves the old file whole."""
    torch.save((step, [each.state_dict() for each in objects]), file.with_suffix(".new"))
    os.replace(file.with_suffix(".new"), file)


def load(file: Path, *objects: Stateful) -> int:
    """Load it, if there is one; return the step to begin with."""
    if not file.exists():
        return 0
    step, states = torch.load(file)
    for each, state in zip(objects, states, strict=True):
        each.load_state_dict(state)
    return int(step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the checkpoint is")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--fault", action="store_true", help="rank 1 fails in step 70")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    train(options)
