"""Hooks called by the stand-in tree: the model, the records and the faults of the test's plan."""

from __future__ import annotations

import os
import signal
import time

import nvrx_megatron

from nvrx_core.inprocess import current_call
from nvrx_core.testing import Point, inject
from tests.harness.megatron.model import Training
from tests.harness.megatron.plan import Plan
from tests.harness.process.workers.record import Record

__all__ = ["entered", "in_evaluation", "in_tracker", "left_with", "stepped", "training_of"]

plan = Plan.of_environment()
record = Record.of_environment()
me = int(os.environ["RANK"])
IN_TRACKER = 1000  # the step of a fault injected while the tracker file is written
EVERY = 2000  # the step of a fault injected at the first step of each iteration


def iteration() -> int:
    call = current_call()
    return -1 if call is None else call.iteration


def entered() -> None:
    """`pretrain` is entered."""
    handler = signal.getsignal(signal.SIGUSR2)
    record(
        "enter", iteration=iteration(), rank=os.environ["RANK"], world=os.environ["WORLD_SIZE"],
        groups=nvrx_megatron.state_report(), handler=handler == signal.SIG_DFL,
    )  # fmt: skip


def training_of(world: int) -> Training:
    return Training(Plan(tp=world))


def stepped(step: int, loss: float | None) -> None:
    """A training step is done; inject a fault before the next."""
    record("step", iteration=iteration(), step=step, rank=os.environ["RANK"], loss=loss)
    for at in (step + 1, EVERY):
        kind = plan.schedule().due(Point(me, iteration() if at != EVERY else 0, at))
        if kind is not None:
            inject(kind, stamp=lambda at: record("fault_injected", at=at))


def in_tracker() -> None:
    """The tracker file is open and empty; a peer breaks meanwhile."""
    if plan.schedule().of_iteration(iteration()) and "1000" in plan.faults:
        record("tracker", iteration=iteration())
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            time.sleep(0.005)


def in_evaluation() -> None:
    """A step of evaluation, which takes as long as the plan says."""
    record("evaluate", iteration=iteration())
    end = time.monotonic() + plan.slow_save
    while time.monotonic() < end:
        time.sleep(0.01)


def left_with(training: Training) -> None:
    """The training is done."""
    record("weights", sum=training.weights())
