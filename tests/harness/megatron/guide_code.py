"""A rank that saves as the guide writes it: the checkpoints are one object of the module, saved in the background.

The first argument names what happens to the save of step `BREAKS_AT` in the first iteration.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from concurrent.futures import Future
from typing import Any

import nvrx_megatron
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from nvrx_megatron.checkpoint import Attempt

from examples.megatron import on_cpu
from nvrx_core.inprocess import CallWrapper
from tests.harness.megatron.plan import Plan
from tests.harness.process.workers.record import Record

__all__: list[str] = []

plan = Plan.of_environment()
record = Record.of_environment()
me, way = int(os.environ["RANK"]), sys.argv[1]
BREAKS_AT = 4
POLLED = "exception while a polled save is pending"
APART = "writes that end apart"
POLLS = 3
checkpoints = nvrx_megatron.AtomicCheckpoint(os.environ["NVRX_TEST_CHECKPOINTS"], keep=2)
pending: list[tuple[Attempt, Future[Any]]] = []
may_end = threading.Event()
"""Set when rank 1 may end its write, if that is to end later than that of rank 0."""


class Writer(dcp.FileSystemWriter):
    """Writes as torch does, and ends when it may."""

    def write_data(self, *arguments: Any, **more: Any) -> Any:
        written = super().write_data(*arguments, **more)
        may_end.wait()
        return written


class Unsaved:
    """A value of a state that no save can write."""

    def __reduce__(self) -> str:
        raise ValueError("injected into the save")


def train(call: CallWrapper) -> None:
    from tests.harness.megatron.model import begin, end

    record("enter", iteration=call.iteration, rank=os.environ["RANK"])
    training = begin(plan)
    first = load(training)
    record("resume", iteration=call.iteration, step=first)
    for step in range(first, plan.steps):
        record("step", iteration=call.iteration, step=step, rank=os.environ["RANK"], loss=training.step(step))
        call.ping()
        call.progress(step)
        if (step + 1) % plan.save_every == 0 and is_free(polled=way == POLLED and call.iteration > 0):
            save(step + 1, training, broken=call.iteration == 0 and step + 1 == BREAKS_AT)
    finish()
    dist.barrier()
    record("weights", sum=training.weights())
    end()


def load(training: Any) -> int:
    found = checkpoints.latest()
    if found is None:
        return 0
    step, folder = found
    state = state_of(training)
    dcp.load(state, checkpoint_id=str(folder))
    training.model.module.load_state_dict(state[os.environ["RANK"]])
    return step


def save(step: int, training: Any, broken: bool) -> None:
    """Begin a save in the background; `finish` completes it."""
    if broken and way == "error of the first rank":
        try:
            checkpoints.begin("four")  # type: ignore[arg-type]
        except ValueError:
            record("refused")
    attempt = checkpoints.begin(step)
    if broken and way == "exception" and me == 1:
        raise RuntimeError("injected between begin and finish")
    state = state_of(training)
    if broken and way == "failed future" and me == 1:
        state["unsaved"] = Unsaved()
    writer = Writer(attempt.folder) if broken and way == APART and me == 1 else None
    future: Any = dcp.async_save(state, checkpoint_id=str(attempt.folder), storage_writer=writer)
    pending.append((attempt, future))
    if broken and way == APART:
        record("polled", ended=[attempt.poll(future) for _ in range(POLLS)])
        may_end.set()
    if broken and way in {"exception while it is pending", POLLED} and me == 1:
        raise RuntimeError("injected while a save is pending")


def is_free(polled: bool) -> bool:
    """Return whether a save may begin: the one before is waited for, or polled, as the guide writes it."""
    if not polled:
        finish()
    elif pending and not pending[0][0].poll(pending[0][1]):
        return False
    pending.clear()
    return True


def finish() -> None:
    while pending:
        attempt, future = pending.pop()
        record("finished", step=attempt.step, complete=attempt.finish(future))


def state_of(training: Any) -> dict[str, Any]:
    return {os.environ["RANK"]: training.model.module.state_dict()}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    on_cpu.install()
    sys.argv[1:] = plan.command_line()
    args = nvrx_megatron.add_arguments(argparse.ArgumentParser()).parse_args()
    nvrx_megatron.inprocess_restart(train, args)()
    record("end")
