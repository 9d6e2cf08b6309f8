"""A rank that trains a tiny GPT on megatron-core, as a user's own loop does, with the faults of its plan."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import time

import nvrx_megatron
import torch
import torch.distributed as dist

from examples.megatron import on_cpu
from nvrx_core.inprocess import CallWrapper
from nvrx_core.testing import Point, failpoints, inject
from tests.harness.megatron.plan import Plan
from tests.harness.process import host
from tests.harness.process.workers.plan import INJECTIONS
from tests.harness.process.workers.record import Record

__all__: list[str] = []

plan = Plan.of_environment()
record = Record.of_environment()
me = int(os.environ["RANK"])
written: list[int] = []


def train(call: CallWrapper) -> float | None:
    from tests.harness.megatron.model import begin, end
    from tests.harness.megatron.saves import Saves

    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    record("enter", iteration=call.iteration, rank=rank, world=world, groups=nvrx_megatron.state_report())
    training = begin(plan)
    saves = Saves(plan, training)
    if plan.stop_writers:
        record("writers", iteration=call.iteration, gone=not any(map(host.alive, written)))
    first = saves.resume() if plan.save_every else 0
    record("resume", iteration=call.iteration, step=first)
    loss = None
    for step in range(first, plan.steps):
        break_down(call, step)
        loss = training.step(step)
        call.ping()
        call.progress(step)
        record("step", iteration=call.iteration, step=step, rank=rank, loss=loss)
        saves.poll()
        if plan.save_every and (step + 1) % plan.save_every == 0:
            with call.suspend_ping():
                save(saves, step + 1, call.iteration)
    saves.poll(wait=True)
    saves.queue.close()
    dist.barrier()
    record("weights", sum=training.weights())
    end()
    return loss


def break_down(call: CallWrapper, step: int) -> None:
    kind = plan.schedule().due(Point(me, call.iteration, step))
    if kind is not None:
        inject(kind, call=call, stamp=lambda at: record("fault_injected", at=at, step=step))


def save(saves, done: int, iteration: int) -> None:  # type: ignore[no-untyped-def]
    record("save", iteration=iteration, step=done)
    if plan.slow_save:
        end = time.monotonic() + plan.slow_save
        while time.monotonic() < end:
            time.sleep(0.01)
    saves.save(done)
    record("saved", iteration=iteration, step=done)
    if plan.stop_writers and iteration == 0:
        for pid in saves.writers():
            os.kill(pid, signal.SIGSTOP)
            written.append(pid)
            record("writer", iteration=iteration, pid_of_writer=pid)


if __name__ == "__mp_main__":  # a process that saves in the background
    torch.cuda.device_count = lambda: 1
    on_cpu.install()
if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    on_cpu.install()
    if plan.nodes > 1:
        socket.gethostname = lambda node=me // (int(os.environ["WORLD_SIZE"]) // plan.nodes): f"node-{node}"
    failpoints.install(plan.schedule(), initial_rank=me, record=os.environ[INJECTIONS])
    parser = nvrx_megatron.add_arguments(argparse.ArgumentParser())
    sys.argv[1:] = plan.command_line()
    record("end", loss=nvrx_megatron.inprocess_restart(train, parser.parse_args())())
