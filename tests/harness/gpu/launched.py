"""A worker of `ft_launcher` on a CUDA device: rank 1 is killed in the first cycle, and hangs in the second one.

Its heartbeats, its sections and the timeouts that are learned from them go over NCCL.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import asdict
from typing import Any

from tests.harness.process.workers.launcher_worker import CYCLE, RANK, say

WARM = "torch" in sys.modules
STEPS, FAULTY_STEP = 20, 10


def await_gate() -> None:
    while not os.path.exists(f"{os.environ['NVRX_TEST_GATE']}-{CYCLE}"):
        time.sleep(0.02)  # noqa: TID251 - for a file that another process makes


def inject_fault() -> None:
    if CYCLE == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)  # noqa: TID251 - a hang is what is wanted here


def train(client: Any) -> float:
    import torch
    import torch.distributed as dist

    value = torch.ones(1 << 16, device="cuda")
    for step in range(STEPS):
        if step == FAULTY_STEP and CYCLE < 2:
            await_gate()
        client.start_section("step")
        if (RANK, step) == (1, FAULTY_STEP) and CYCLE < 2:
            inject_fault()
        dist.all_reduce(value.fill_(1 + RANK))
        torch.cuda.synchronize()
        client.end_section("step")
        client.send_heartbeat()
    return value[0].item()


def main() -> None:
    import torch
    import torch.distributed as dist

    from nvrx_core.fault_tolerance import RankMonitorClient

    say("start", warm=WARM)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    torch.cuda.set_device(0)
    os.environ["NCCL_HOSTID"] = f"host-of-{RANK}"  # NCCL refuses two ranks of one host on one device
    dist.init_process_group("nccl")
    free, total = torch.cuda.mem_get_info()
    found = torch.cuda.get_device_properties(0)
    device = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    say("ready", used=total - free, device=device, processors=sorted(os.sched_getaffinity(0)))
    result = train(client)
    client.calculate_and_set_hb_timeouts()
    client.calculate_and_set_section_timeouts()
    learned = {**asdict(client.hb_timeouts), **client.section_timeouts.section}
    dist.destroy_process_group()
    client.shutdown_workload_monitoring()
    say("done", result=result, learned=learned)


if __name__ == "__main__":
    main()
