"""`plain.py` after the steps of the guide: a comment names the step of each line that is new."""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from nvrx_core import inprocess  # step 1


class Rings(Dataset):
    def __init__(self, size):
        angle = torch.linspace(0, 40, size)
        self.labels = torch.arange(size) % 2
        self.points = torch.stack([angle.cos(), angle.sin()], dim=1) * (1 + self.labels)[:, None]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.points[index], self.labels[index]


@inprocess.Wrapper()  # step 3
def train(options, device, data, call_wrapper: inprocess.CallWrapper):  # step 3
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()  # step 2
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.7)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=options.workers)
    first = 0
    if options.checkpoint.exists():  # step 4
        saved = torch.load(options.checkpoint, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])  # step 4
        first = saved["epoch"] + 1
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        try:
            loss = train_epoch(ddp, optimizer, loader, device)
        except BaseException as error:
            print(f"epoch {epoch} has failed: {error!r}", file=sys.stderr)
            raise  # step 7
        scheduler.step()
        call_wrapper.progress(epoch)  # step 6
        if rank == 0:  # step 2
            print(f"epoch {epoch} on {dist.get_world_size()} ranks: loss {loss:.4f}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            state["scheduler"] = scheduler.state_dict()  # step 4
            with call_wrapper.atomic():  # step 5
                torch.save(state, options.checkpoint.with_suffix(".new"))  # step 5
                os.replace(options.checkpoint.with_suffix(".new"), options.checkpoint)  # step 5
    dist.destroy_process_group()


def train_epoch(ddp, optimizer, loader, device):
    for points, labels in loader:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(ddp(points.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=Path("rings.pt"))
    options = parser.parse_args()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    train(options, device, Rings(600))


if __name__ == "__main__":
    main()
