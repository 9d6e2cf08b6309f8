"""A rank that trains on megatron-core in one of the ways of users, named by its first argument."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from typing import Any

import nvrx_megatron
import torch
import torch.distributed as dist

from examples.megatron import on_cpu
from nvrx_core.inprocess import CallWrapper
from nvrx_core.testing import failpoints
from tests.harness.megatron.plan import Plan
from tests.harness.process.workers.plan import INJECTIONS
from tests.harness.process.workers.record import Record

__all__: list[str] = []

plan = Plan.of_environment()
record = Record.of_environment()
me, way = int(os.environ["RANK"]), sys.argv[1]
BREAKS_AT = 3
EXITS = {"exit": 3, "clean exit": 0}


def train(call: CallWrapper) -> None:
    from tests.harness.megatron.model import begin, end
    from tests.harness.megatron.saves import Saves

    rank = os.environ["RANK"]
    record("enter", iteration=call.iteration, rank=rank, groups=nvrx_megatron.state_report())
    training = begin(plan)
    saves = Saves(plan, training)
    group = dist.new_group() if way == "thread" else None
    averaging = threading.Thread(target=average, args=[group, call.iteration], daemon=True)
    averaging.start()
    for step in range(saves.resume() if plan.save_every else 0, plan.steps):
        if step == BREAKS_AT and me == 1 and call.iteration == 0:
            break_down()
        record("step", iteration=call.iteration, step=step, rank=rank, loss=training.step(step))
        call.ping()
        call.progress(step)
        if plan.save_every and (step + 1) % plan.save_every == 0:
            saves.save(step + 1)
    dist.barrier()
    averaging.join()  # a thread that is in a collective when the interpreter ends may abort the process
    record("weights", sum=training.weights())
    end()


def average(group: Any, iteration: int) -> None:
    """Rank 0's thread blocks in a collective that rank 1's thread does not enter before the restart."""
    if group is not None and (me == 0 or iteration):
        record("averages", iteration=iteration)
        dist.all_reduce(torch.ones(1), group=group)


def break_down() -> None:
    if way in EXITS:
        sys.exit(EXITS[way])
    if way != "signal":
        raise RuntimeError("injected")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    on_cpu.install()
    if way == "signal":  # a scheduler's, in the middle of a save
        failpoints.install(plan.schedule(), initial_rank=me, record=os.environ[INJECTIONS])
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    words = sys.argv[2:]
    sys.argv[1:] = [*plan.command_line(), *words]
    args = nvrx_megatron.add_arguments(argparse.ArgumentParser()).parse_args()
    wrapped = nvrx_megatron.inprocess_restart(train, args)
    for record.call in range(2 if way == "twice" else 1):
        wrapped()
    record("end")
