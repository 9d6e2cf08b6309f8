"""lm-resiliency beside state in memory: torchrun restarts both ranks, which load what its last copy in memory has left.

`live_state.py --lm-resiliency PYTHON` runs it. The interpreter needs torch and lm-resiliency; this file needs nothing
else, because that interpreter runs it. It is set for few lost steps: a copy of each step, written to memory (/dev/shm)
where the ranks end, and no search for silent corruption, which is for GPUs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EVERY, FAULTS = 8, 3


def say(what: str, **fields: object) -> None:
    line = {"what": what, "at": time.monotonic(), **fields}
    os.write(1, f"{json.dumps(line)}\n".encode())  # the ranks have one pipe


def rank(options: argparse.Namespace) -> None:
    """Train; rank 1 ends in the pass of every 8th step."""
    library: Any = importlib.import_module("lm_resiliency")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    attempt, own = os.environ["TORCHELASTIC_RESTART_COUNT"], int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{options.folder}/store-{attempt}", rank=own, world_size=2)
    layers = (torch.nn.Linear(options.width, options.width, bias=False) for _ in range(options.layers))
    model = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for each in model.parameters():
            each.normal_(std=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    ddp = DistributedDataParallel(model)
    checkpoint = library.InMemoryCkptConfig(
        interval=1, disk_flush_interval=options.flush, disk_folder=options.folder, run_id="measured", pin_memory=False,
    )  # fmt: skip
    session = library.enable_resiliency(
        ddp,
        optimizer,
        interval=1,
        enable_detection=False,
        checkpoint=checkpoint,
        device=torch.device("cpu"),
        group=dist.group.WORLD,
        nccl_group=dist.new_group(backend="gloo"),
    )
    first = session.step_count
    say("resumed", step=first)
    batch = torch.randn(options.batch, options.width)
    for step in range(first, (FAULTS + 2) * EVERY):
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = ddp(batch).square().mean()
        if own == 1 and int(attempt) < FAULTS and step == EVERY * (int(attempt) + 1):
            say("fault", step=step)
            os._exit(1)
        loss.backward()
        optimizer.step()
        say("step", step=step, took=time.perf_counter() - begun)
    dist.destroy_process_group()


def measure(python: str, width: int, layers: int, batch: int) -> str:
    """Return in a line how long both ranks took to the first new step, and how many they did again."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={FAULTS}"]
        run += ["--monitor-interval=0.02"]
        sizes = {"--width": width, "--layers": layers, "--batch": batch, "--flush": 1, "--folder": folder}
        words = [str(word) for pair in sizes.items() for word in pair]
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [python, *run, str(pathlib.Path(__file__)), *words], env=variables, capture_output=True, text=True,
            timeout=570, check=False,
        )  # fmt: skip
    if done.returncode:
        return f"lm-resiliency: {done.stderr[-4000:]}"
    lines = sorted(
        (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")), key=lambda line: line["at"]
    )
    took, again = [], []
    for fault in (line for line in lines if line["what"] == "fault"):
        later = [line for line in lines if line["at"] > fault["at"]]
        took.append(
            [line["at"] for line in later if line["what"] == "step" and line["step"] == fault["step"]][1] - fault["at"]
        )
        again.append(fault["step"] - next(line["step"] for line in later if line["what"] == "resumed"))
    step = statistics.median(line["took"] for line in lines if line["what"] == "step")
    return (
        f"{4e-6 * layers * width**2:.0f} MB, lm-resiliency, a process ends: both ranks to the first new step "
        f"{statistics.median(took):.3f} s (n={len(took)}, max {max(took):.3f}), steps done again {again}; "
        f"a step with its copy {1000 * step:.0f} ms"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("width", "layers", "batch", "flush"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--folder", required=True)
    sys.exit(rank(parser.parse_args()))
