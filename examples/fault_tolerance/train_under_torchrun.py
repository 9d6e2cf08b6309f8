"""A plain training script, and the one line by which a hung rank is ended, so that torchrun restarts the job.

    export NVRX_FT_RANK_HEARTBEAT_TIMEOUT=10 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 2 --max-restarts 1 \
        examples/fault_tolerance/train_under_torchrun.py --checkpoint example.pt --hang

With `--hang`, rank 1 blocks half-way through the first attempt. A rank that executes nothing for 10 s is ended by its
monitor, torchrun starts all ranks again, and the second attempt goes on from the checkpoint.

The second variable is needed with torchrun of torch 2.13: without it, all attempts share one store, and the ranks of
the second attempt may find addresses that gloo has left there in the first, and wait there for nobody.
"""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nvrx_core.fault_tolerance import start_local_monitor

STEPS = 40


def train(checkpoint: Path, *, hang: bool) -> None:
    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 1)
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        first = saved["step"]
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    print(f"rank {dist.get_rank()} starts at step {first}", flush=True)
    for step in range(first, STEPS):
        if hang and (step, dist.get_rank()) == (STEPS // 2, 1):
            threading.Event().wait()
        optimizer.zero_grad()
        ddp(torch.randn(64, 8)).square().mean().backward()
        optimizer.step()
        if step % 10 == 9 and dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "step": step + 1}, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
    print(f"rank {dist.get_rank()} is done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--hang", action="store_true", help="rank 1 hangs half-way through the first attempt")
    options = parser.parse_args()
    start_local_monitor()
    train(options.checkpoint, hang=options.hang and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
