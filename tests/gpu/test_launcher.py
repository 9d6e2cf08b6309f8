"""`ft_launcher` with workers on a CUDA device: faults, standby workers, learned timeouts, processors."""

from __future__ import annotations

import os
from pathlib import Path

from nvrx_launcher.workers.binding import NODES, processors_of

from tests.harness.gpu.case import NCCL
from tests.harness.process.launch import WORKERS, Start, events_of

WORKER = str(WORKERS.parents[1] / "gpu" / "launched.py")
MONITORED = ("--ft-rank-section-timeouts", "step:3", "--ft-rank-heartbeat-timeout", "60", "--max-restarts", "2")
STANDBYS = ("--ft-warm-workers", "on", "--ft-warm-imports", "torch.distributed", "--ft-log-level", "DEBUG")


def test_faults_of_workers(launcher: Start, tmp_path: Path) -> None:
    """A standby takes a killed worker's place and a hung one's: it has imported torch, and nothing of the device."""
    job = launcher("", *MONITORED, *STANDBYS, worker=WORKER, **NCCL)
    for cycle in (0, 1):
        print(cycle, "MiB in use", [each["used"] >> 20 for each in job.read(2, "ready", cycle)])
        for rank in (0, 1):
            job.await_log(f"a standby worker for local rank {rank} is ready")
        job.log = ""
        Path(f"{tmp_path}/gate-{cycle}").touch()
    code, log = job.finish(120)
    print(*((each["monotonic"], each["reason"]) for each in events_of(tmp_path, "worker_failed")), sep="\n")
    assert code == 0, log
    done = [each for each in job.events if each["event"] == "done"]
    assert [(each["cycle"], each["result"]) for each in done] == [(2, 3.0)] * 2, log
    assert done[0]["learned"] == done[1]["learned"]
    print(*((each["cycle"], each["warm"]) for each in job.events if each["event"] == "start"))
    assert [each["warm"] for each in job.events if each["event"] == "start" and each["cycle"] == 2] == [True, True]


def test_a_worker_runs_on_the_processors_near_its_device(launcher: Start, tmp_path: Path) -> None:
    Path(f"{tmp_path}/gate-0").touch()
    job = launcher("", "--nproc-per-node", "1", "--numa-binding", "node", worker=WORKER, **NCCL)
    (ready,) = job.read(1, "ready")
    assert job.finish(60)[0] == 0
    assert set(ready["processors"]) == near(ready["device"]) & os.sched_getaffinity(0)


def near(device: str) -> frozenset[int]:
    """The processors of a device's NUMA node, by the kernel."""
    node = int(Path(f"/sys/bus/pci/devices/{device}/numa_node").read_text())
    return processors_of((NODES / f"node{max(node, 0)}" / "cpulist").read_text())
