"""A plain training loop, and the one decorator that makes it survive faults.

    torchrun --nproc-per-node 2 examples/inprocess/basic_example.py --fault

With `--fault`, rank 1 fails half-way through its first attempt: all ranks leave the function, and enter it again in the
same processes. Without torchrun, give each process RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; rank 0 hosts the
wrapper's store on MASTER_PORT + 1.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nvrx_core import inprocess


@inprocess.Wrapper(soft_timeout=timedelta(seconds=20), hard_timeout=timedelta(seconds=30))
def train(steps: int, call_wrapper: inprocess.CallWrapper) -> float:
    dist.init_process_group("gloo")
    sums = torch.nn.Linear(8, 1)
    model = DistributedDataParallel(sums)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        if "--fault" in sys.argv and (dist.get_rank(), call_wrapper.iteration, step) == (1, 0, steps // 2):
            raise RuntimeError("a fault, to show a restart")
        x = torch.randn(64, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    return sums.weight.mean().item()


if __name__ == "__main__":
    weight = train(100)
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} has learned {weight:.3f}, which should be 1")
