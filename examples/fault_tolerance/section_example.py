"""A training loop in sections, whose timeouts are learned, and stored in the checkpoint.

    torchrun --nproc-per-node 2 examples/fault_tolerance/section_example.py --checkpoint example.pt

Start it twice. The first run has the timeouts of `CONFIG`, and ends with those that it has learned. The second one goes
on from the checkpoint, with the learned timeouts from its first step on.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nvrx_core.fault_tolerance import FaultToleranceConfig, RankMonitorClient, start_local_monitor

CONFIG = FaultToleranceConfig(
    rank_section_timeouts={"setup": 600.0, "step": 60.0, "checkpoint": 300.0},
    rank_out_of_section_timeout=300.0,
    safety_factor=100.0,  # for steps of milliseconds; the default suits steps of seconds
)
STEPS = 20


def train(client: RankMonitorClient, checkpoint: Path) -> None:
    client.start_section("setup")
    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 1)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    first = load(checkpoint, model, client)
    client.end_section("setup")
    if dist.get_rank() == 0:
        print(f"from step {first} on, step may take {client.section_timeouts.section['step']:.3f} s", flush=True)
    for step in range(first, first + STEPS):
        client.start_section("step")
        optimizer.zero_grad()
        ddp(torch.randn(64, 8)).square().mean().backward()
        optimizer.step()
        client.end_section("step")
        if step % 10 == 9:
            client.start_section("checkpoint")
            save(checkpoint, model, step + 1, client)
            client.end_section("checkpoint")
    # All ranks take part: the longest run of a section on any rank decides. Then the result is stored.
    client.calculate_and_set_section_timeouts()
    save(checkpoint, model, first + STEPS, client)


def save(checkpoint: Path, model: torch.nn.Module, step: int, client: RankMonitorClient) -> None:
    if dist.get_rank() == 0:
        state = {"model": model.state_dict(), "step": step, "rank_monitor": client.state_dict()}
        torch.save(state, checkpoint.with_suffix(".new"))
        os.replace(checkpoint.with_suffix(".new"), checkpoint)


def load(checkpoint: Path, model: torch.nn.Module, client: RankMonitorClient) -> int:
    if not checkpoint.exists():
        return 0
    state: dict[str, Any] = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    client.load_state_dict(state["rank_monitor"])
    return int(state["step"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", type=Path, required=True)
    options = parser.parse_args()
    monitor_client = start_local_monitor(CONFIG)
    train(monitor_client, options.checkpoint)
    for section, timeout in sorted(monitor_client.section_timeouts.section.items()):
        print(f"rank {dist.get_rank()} has learned: {section} {timeout:.3f} s", flush=True)
    monitor_client.shutdown_workload_monitoring()
    dist.destroy_process_group()
