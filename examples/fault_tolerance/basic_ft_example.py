"""A training loop that sends a heartbeat in each step; the rank monitor ends a rank that sends none.

    torchrun --nproc-per-node 2 examples/fault_tolerance/basic_ft_example.py --hang

With `--hang`, rank 1 gets no batch in step 20, and its monitor ends it after 5 s. Rank 0 only waits for it, and is not
ended by its own: its last heartbeat is one that rank 1 has not sent.
"""

from __future__ import annotations

import argparse
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nvrx_core.fault_tolerance import FaultToleranceConfig, RankMonitorClient, start_local_monitor

CONFIG = FaultToleranceConfig(initial_rank_heartbeat_timeout=60.0, rank_heartbeat_timeout=5.0)


def train(client: RankMonitorClient, steps: int, *, hang: bool) -> None:
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        if hang and (step, dist.get_rank()) == (20, 1):
            threading.Event().wait()
        batch = torch.randn(64, 8)
        client.send_heartbeat()  # before the rank waits for others
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang", action="store_true", help="rank 1 hangs in step 20")
    options = parser.parse_args()
    # Where a launcher has started a monitor, and set FT_RANK_MONITOR_IPC_SOCKET, this is the same as
    # RankMonitorClient() and init_workload_monitoring(), and the launcher's configuration holds.
    monitor_client = start_local_monitor(CONFIG)
    dist.init_process_group("gloo")
    train(monitor_client, 50, hang=options.hang)
    monitor_client.shutdown_workload_monitoring()
    print(f"rank {dist.get_rank()} is done", flush=True)
    dist.destroy_process_group()
