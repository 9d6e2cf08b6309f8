"""A script of a user, for torchrun: it learns on which of two rings a point lies."""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANK = int(os.environ["RANK"])


class Rings(Dataset):
    def __init__(self, size):
        angle = torch.linspace(0, 40, size)
        self.labels = torch.arange(size) % 2
        self.points = torch.stack([angle.cos(), angle.sin()], dim=1) * (1 + self.labels)[:, None]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.points[index], self.labels[index]


def train(options, device, data):
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.7)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=options.workers)
    first = 0
    if options.resume:
        saved = torch.load(options.checkpoint, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        try:
            loss = train_epoch(ddp, optimizer, loader, device)
        except BaseException as error:
            print(f"epoch {epoch} has failed: {error!r}", file=sys.stderr)
            sys.exit(1)
        scheduler.step()
        if RANK == 0:
            print(f"epoch {epoch} on {dist.get_world_size()} ranks: loss {loss:.4f}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, options.checkpoint)
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
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    train(options, device, Rings(600))


if __name__ == "__main__":
    main()
