"""torchft beside state in memory: two replica groups of one process, one of which ends and is started again.

`live_state.py --torchft PYTHON` runs it. The interpreter needs torch and torchft; this file needs nothing else, because
that interpreter runs it. The lighthouse and the timeouts are set for speed: heartbeats every 20 ms that count for
0.5 s, and a quorum that waits 0.1 s for those who are missing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import IO, Any

import torch
import torch.distributed as dist

EVERY, FAULTS = 40, 3


def say(what: str, **fields: object) -> None:
    print(json.dumps({"what": what, "at": time.monotonic(), **fields}), flush=True)


def replica(options: argparse.Namespace) -> None:
    """Train as one replica; replica 1 ends in the backward pass as often as it is told to."""
    torchft: Any = importlib.import_module("torchft")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    layers = (torch.nn.Linear(options.width, options.width, bias=False) for _ in range(options.layers))
    model = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for each in model.parameters():
            each.normal_(std=0.01)
    plain = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)), load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()}, min_replica_size=1,
        replica_id=f"replica_{options.replica}", store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1,
        timeout=timedelta(seconds=10), heartbeat_interval=timedelta(milliseconds=20), init_sync=False,
    )  # fmt: skip
    optimizer = torchft.Optimizer(manager, plain)
    batch = torch.randn(options.batch, options.width)
    together = 0
    while True:
        before = manager.current_step()
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        if together == EVERY and options.replica == 1 and options.attempt < FAULTS:
            say("fault")
            os._exit(1)
        loss.backward()
        for work in [
            manager.allreduce(each.grad) for each in model.parameters()
        ]:  # its DDP asserts when a peer is lost
            work.wait()
        optimizer.step()
        if manager.current_step() > before:
            together += manager.num_participants() == 2
            say("step", replicas=manager.num_participants())


@contextlib.contextmanager
def lighthouse(python: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    timeouts = {"--heartbeat_timeout_ms": 500, "--join_timeout_ms": 100, "--quorum_tick_ms": 10, "--min_replicas": 1}
    command = [str(pathlib.Path(python).parent / "torchft_lighthouse"), "--bind", address]
    command += [str(word) for pair in timeouts.items() for word in pair]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def measure(python: str, width: int, layers: int, batch: int) -> str:
    """Return in a line how long the other replica and both took to their next step."""
    lines: list[dict[str, Any]] = []
    with lighthouse(python) as address, tempfile.TemporaryFile("w+") as output:
        variables = {**os.environ, "TORCHFT_LIGHTHOUSE": address, "OMP_NUM_THREADS": "1"}

        def start(number: int, attempt: int, stdout: IO[str] | int) -> subprocess.Popen[str]:
            words = ["--replica", number, "--attempt", attempt, "--width", width, "--layers", layers, "--batch", batch]
            command = [python, __file__, *map(str, words)]
            return subprocess.Popen(command, env=variables, stdout=stdout, stderr=subprocess.DEVNULL, text=True)

        other = start(0, 0, output)
        for attempt in range(FAULTS + 1):
            process = start(1, attempt, subprocess.PIPE)
            assert process.stdout is not None
            for text in process.stdout:
                line = {"replica": 1, **json.loads(text)}
                lines.append(line)
                if attempt == FAULTS and line["what"] == "step" and line["replicas"] == 2:
                    break
            process.kill()
            process.wait()
        other.kill()
        other.wait()
        output.seek(0)
        lines += [{"replica": 0, **json.loads(text)} for text in output if text.endswith("}\n")]
    alone, both = [], []
    for fault in (line["at"] for line in lines if line["what"] == "fault"):
        later = [line for line in lines if line["what"] == "step" and line["at"] > fault]
        alone.append(min(line["at"] for line in later if line["replica"] == 0) - fault)
        both.append(min(line["at"] for line in later if line["replica"] == 1 and line["replicas"] == 2) - fault)
    return (
        f"{4e-6 * layers * width**2:.0f} MB, torchft, a process ends: to the next step of the other replica "
        f"{statistics.median(alone):.3f} s, of both {statistics.median(both):.3f} s (n={len(alone)})"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("replica", "attempt", "width", "layers", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    sys.exit(replica(parser.parse_args()))
