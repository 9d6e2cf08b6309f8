r"""A tiny GPT of megatron-core, trained on text, byte by byte; a fault restarts it in its processes.

What nvrx needs: flags, one line that wraps `train`, and checkpoints that no fault can tear. Without a GPU it trains on
the CPU over gloo. Run by `demo.py`, or alone:

    ft_launcher --nproc-per-node 2 examples/megatron/train.py --text README.md --output /tmp/run --tensor-parallel 2 \
        --inprocess-restart --inprocess-granularity rank --faults 1:0:17=exception

megatron-core's first save starts a process that imports this file, while the rank waits: so it imports little at its
top, and what takes seconds in its functions.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import nvrx_megatron

from nvrx_core.testing import Point, Schedule

if TYPE_CHECKING:
    from nvrx_core.inprocess import CallWrapper

SAVE_EVERY = 10
ME = int(os.environ.get("RANK", "0"))  # before a restart renumbers the ranks


def train(args: argparse.Namespace, call_wrapper: CallWrapper) -> None:
    """Train from the newest checkpoint on; called anew after each fault."""
    import gpt
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    parallel_state.initialize_model_parallel(args.tensor_parallel)
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    model, optimizer = gpt.build(args)
    checkpoints = nvrx_megatron.AtomicCheckpoint(args.output / "checkpoints", keep=2)
    first = gpt.load(checkpoints, model, optimizer)
    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    faults = Schedule.parse(args.faults)
    for step in range(first, args.steps):
        faults.inject(Point(ME, call_wrapper.iteration, step), stamp=lambda at: tell(args, fault=at), call=call_wrapper)
        loss = gpt.one_step(model, optimizer, gpt.batches(text, step))
        call_wrapper.ping()
        call_wrapper.progress(step)
        tell(args, step=step, iteration=call_wrapper.iteration, at=time.monotonic(), loss=loss)
        if (step + 1) % SAVE_EVERY == 0:
            with call_wrapper.suspend_ping():
                gpt.save(checkpoints, step + 1, model, optimizer)
    dist.barrier()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def tell(args: argparse.Namespace, **what: object) -> None:
    """Append a line to the record of this rank."""
    with (args.output / f"rank-{ME}.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


def main() -> None:
    """Parse the flags, and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="what to learn")
    parser.add_argument("--output", type=Path, required=True, help="folder for records and checkpoints")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--faults", default="", help="initial_rank:iteration:step=kind, ...")
    args = nvrx_megatron.add_arguments(parser).parse_args()
    import torch

    if not torch.cuda.is_available():
        import on_cpu

        on_cpu.install()
    args.output.mkdir(parents=True, exist_ok=True)
    nvrx_megatron.inprocess_restart(train, args)(args)


if __name__ == "__main__":
    main()
