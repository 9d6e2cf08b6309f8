"""A training under launchers that is disturbed: `launcher_training.py SCHEDULE`, a JSON object of STEP: [KIND, RANK].

The gradients of all ranks are averaged by a collective. Rank 0 saves every few steps; whoever is started goes on from
there. Each fault is injected once. KIND `node` kills the launcher of the rank and all its workers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

WORLD, SIZE, SAVE_EVERY, RATE = 4, 16, 4, 0.05


def gradient(weights: torch.Tensor, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient and loss of a rank's batch of a step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    rows = torch.randn(8, SIZE, dtype=torch.float64, generator=generator)
    errors = rows @ (weights - torch.arange(SIZE, dtype=torch.float64))
    return rows.T @ errors / len(rows), (errors * errors).mean()


def undisturbed(steps: int) -> float:
    """The loss of the last step, as one process finds it."""
    weights, loss = torch.zeros(SIZE, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for step in range(steps):
        found = [gradient(weights, step, rank) for rank in range(WORLD)]
        loss = torch.stack([each[1] for each in found]).mean()
        weights = weights - RATE * torch.stack([each[0] for each in found]).mean(0)
    return loss.item()


def save(path: Path, step: int, weights: torch.Tensor) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}")
    torch.save({"step": step, "weights": weights}, unfinished)
    unfinished.rename(path)


def inject_fault(kind: str, client: object) -> None:
    from nvrx_core.testing.faults import inject
    from tests.harness.process.workers.launcher_faults import inject_fault as inject_into_worker

    if kind != "node":
        inject_into_worker(client, kind)  # type: ignore[arg-type]
        inject("kill")
    launcher = os.getppid()
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for pid in (launcher, *map(int, children)):
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    from nvrx_core.fault_tolerance import RankMonitorClient
    from tests.harness.process.workers.launcher_worker import RANK, say

    schedule = {int(step): fault for step, fault in json.loads(sys.argv[1])["faults"].items()}
    steps, folder = json.loads(sys.argv[1])["steps"], Path(os.environ["NVRX_TEST_GATE"]).parent / "training"
    client = RankMonitorClient()
    client.init_workload_monitoring(num_warmup_iters=1)
    dist.init_process_group("gloo")
    saved = folder / "checkpoint"
    state = torch.load(saved) if saved.exists() else {"step": 0, "weights": torch.zeros(SIZE, dtype=torch.float64)}
    weights, loss = state["weights"], torch.zeros((), dtype=torch.float64)
    dist.barrier()  # nobody saves before all have read
    say("resumed", step=state["step"])
    for step in range(state["step"], steps):
        client.start_section("step")
        kind, target = schedule.get(step, ("", -1))
        if target == RANK and is_first(folder / f"injected-{step}"):
            say("fault_injected", kind=kind, step=step)
            inject_fault(kind, client)
        own, loss = gradient(weights, step, RANK)
        both = torch.cat([own, loss.reshape(1)])
        dist.all_reduce(both)
        weights, loss = weights - RATE * both[:-1] / WORLD, both[-1] / WORLD
        if RANK == 0 and (step + 1) % SAVE_EVERY == 0:
            save(saved, step + 1, weights)
        client.end_section("step")
        client.send_heartbeat()
        time.sleep(0.01)
    dist.destroy_process_group()
    client.shutdown_workload_monitoring()
    say("done", loss=loss.item())


def is_first(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    main()
