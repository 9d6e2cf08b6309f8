"""State in memory (P15, P16, P18): from a fault to the first new step, and what a commit adds to a step.

    python tests/benchmarks/live_state.py [--width 1024] [--layers 6] [--faults 6]
    python tests/benchmarks/live_state.py --checkpoint 10          # the same from a checkpoint every 10 steps
    python tests/benchmarks/live_state.py --torchft PYTHON         # and torchft, of the environment of PYTHON
    python tests/benchmarks/live_state.py --lm-resiliency PYTHON   # and lm-resiliency

Ranks train with AdamW and DDP over gloo; rank 1 raises in the backward pass of every 8th step, or is killed once and a
reserve takes its place. The model is built on the meta device. Parameters are `layers * width ** 2` floats. With
checkpoints, a fault comes half way between two.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nvrx_core import inprocess
from nvrx_core.inprocess import rank_assignment
from tests.benchmarks import lm_resiliency_restart, torchft_replicas
from tests.harness.process.host import free_ports

EVERY = 8


def say(what: str, **fields: object) -> None:
    print(json.dumps({"what": what, "at": time.monotonic(), **fields}), flush=True)


def make_model(width: int, layers: int) -> torch.nn.Module:
    with torch.device("meta"):
        return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))


def train(options: argparse.Namespace, live: inprocess.LiveState, call: inprocess.CallWrapper) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = make_model(options.width, options.layers)
    model.to_empty(device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    first = None if options.checkpoint else live.resume(model, optimizer, optimizer.step)
    if first is None and call.iteration:
        first = load(options, model, optimizer)
    elif first is None:
        first = 0
        torch.manual_seed(1)
        with torch.no_grad():
            for each in model.parameters():
                each.normal_(std=0.01)
        if not options.checkpoint:
            live.start(first)
    say("resumed", step=first)
    ddp = DistributedDataParallel(model, init_sync=False)
    batch = torch.randn(options.batch, options.width)
    for step in range(first, options.steps):
        loss = ddp(batch).square().mean()
        faulty = call.iteration < options.faults and rank == 1 and step == fault_step(options, call.iteration)
        if faulty and options.kill:
            say("fault")
            os.kill(os.getpid(), signal.SIGKILL)
        if faulty:
            say("fault")
            raise RuntimeError("injected")
        loss.backward()
        if options.checkpoint:
            optimizer.step()
        else:
            live.commit(step)
        optimizer.zero_grad(set_to_none=False)
        say("step", step=step)
        if options.checkpoint and step % options.checkpoint == 0 and rank == 0:
            with call.atomic():
                save(options, model, optimizer, step)
    costs = {} if options.checkpoint else compare(ddp, optimizer, batch, live, first=options.steps, pairs=options.pairs)
    say("end", **costs)
    dist.destroy_process_group()


def compare(
    ddp: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, live: inprocess.LiveState, *,
    first: int, pairs: int,
) -> dict[str, list[float]]:  # fmt: skip
    """Return seconds and CPU seconds of steps that end by a commit, and of those that end by the optimizer, in turn.

    A barrier ends each: all ranks wait for the last one in either kind, as they do in the next backward pass.
    """
    found: dict[str, list[float]] = {"with": [], "without": [], "cpu_with": [], "cpu_without": []}
    dist.barrier()
    for number in range(2 * pairs):
        kind = "with" if number % 4 in (0, 3) else "without"
        begun, used = time.perf_counter(), time.process_time()
        ddp(batch).square().mean().backward()
        if kind == "with":
            live.commit(first + number)
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        dist.barrier()
        found[kind].append(time.perf_counter() - begun)
        found[f"cpu_{kind}"].append(time.process_time() - used)
    return found


def fault_step(options: argparse.Namespace, fault: int) -> int:
    return EVERY * (fault + 1) if not options.checkpoint else options.checkpoint * (fault + 1) + options.checkpoint // 2


def save(options: argparse.Namespace, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    file = pathlib.Path(options.folder, "checkpoint.pt")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)


def load(options: argparse.Namespace, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    saved = torch.load(pathlib.Path(options.folder, "checkpoint.pt"))
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"]) + 1


def rank_main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    live = inprocess.LiveState()
    assign = inprocess.Compose(rank_assignment.MaxActiveWorldSize(2), rank_assignment.FillGaps())

    def function(call_wrapper: inprocess.CallWrapper) -> None:
        train(options, live, call_wrapper)

    inprocess.Wrapper(rank_assignment=assign, no_progress_limit=None)(function)()


def measure(options: argparse.Namespace) -> str:
    world, port = (3 if options.kill else 2), free_ports()
    common = {**os.environ, "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "OMP_NUM_THREADS": "1"}  # fmt: skip
    command = [sys.executable, __file__, "--rank", "--folder", options.folder, *sys.argv[1:]]
    store = subprocess.Popen(
        [sys.executable, "-m", "nvrx_core.store", "--host", "127.0.0.1", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert store.stdout is not None
    common["NVRX_STORE_ENDPOINT"] = store.stdout.readline().strip()
    ranks = [
        subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
        for rank in range(world)
    ]  # fmt: skip
    lines = [json.loads(line) for rank in ranks for line in rank.communicate()[0].splitlines() if line.startswith("{")]
    store.kill()
    store.wait()
    lines.sort(key=lambda line: line["at"])
    faults = [line["at"] for line in lines if line["what"] == "fault"]
    resumed, stepped = [], []
    for begun in faults:
        after = [line for line in lines if line["at"] > begun]
        newest = max(line["step"] for line in lines if line["what"] == "step" and line["at"] < begun)
        entered = [line["at"] for line in after if line["what"] == "resumed"]
        resumed.append(max(entered[:2]) - begun)
        stepped.append(
            max(line["at"] for line in after if line["what"] == "step" and line["step"] == newest + 1) - begun
        )
    size = 4e-6 * options.layers * options.width**2
    what = "killed, a reserve takes its place" if options.kill else "exception"
    if options.checkpoint:
        what += f", a checkpoint every {options.checkpoint} steps"
    told = (
        f"{size:.0f} MB, {what}: to the restored state {statistics.median(resumed):.3f} s, to the first new step "
        f"{statistics.median(stepped):.3f} s (n={len(faults)}, max {max(stepped):.3f})"
        if faults
        else f"{size:.0f} MB"
    )
    end = next(line for line in lines if line["what"] == "end")
    if not options.checkpoint:
        wall, cpu = ([end[f"{of}with{out}"] for out in ("", "out")] for of in ("", "cpu_"))
        without, more, more_cpu = 1000 * statistics.median(wall[1]), difference(wall), difference(cpu)
        told += f"; a commit adds to a step of {without:.2f} ms {more:.2f} ms, and {more_cpu:.2f} ms of CPU (medians)"
    return told


def difference(of: list[list[float]]) -> float:
    """Return milliseconds by which the medians differ."""
    return 1000 * (statistics.median(of[0]) - statistics.median(of[1]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--faults", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=40, help="steps with a commit, and as many without, in the end")
    parser.add_argument("--kill", action="store_true", help="kill rank 1 once; a reserve takes its place")
    parser.add_argument(
        "--checkpoint", type=int, default=0, metavar="STEPS", help="a checkpoint every STEPS, no memory"
    )
    parser.add_argument(
        "--torchft", metavar="PYTHON", help="an interpreter that can import torchft: measure it as well"
    )
    parser.add_argument(
        "--lm-resiliency", metavar="PYTHON", help="an interpreter that can import lm-resiliency: measure it as well"
    )
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.faults = 1 if options.kill else options.faults
    options.steps = (options.faults + 2) * (options.checkpoint or EVERY)
    return options


if __name__ == "__main__":
    given = parse()
    if given.rank:
        rank_main(given)
    else:
        with tempfile.TemporaryDirectory() as given.folder:
            print(measure(given))
        if given.torchft:
            print(torchft_replicas.measure(given.torchft, given.width, given.layers, given.batch))
        if given.lm_resiliency:
            print(lm_resiliency_restart.measure(given.lm_resiliency, given.width, given.layers, given.batch))
