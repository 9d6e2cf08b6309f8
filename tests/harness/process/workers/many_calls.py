"""A process with many wrapped calls, as fit, validate, fit: with restarts, and with a rank that is lost on the way.

`NVRX_TEST_CALLS` is how many, `NVRX_TEST_VICTIM` which rank is lost.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from tests.harness.process.workers.record import Record, settle, usage, usage_after

RAISES, DIES, HOOKS = (2, 6), 4, 6
"""Calls in which rank 1 raises, in which a rank is killed, and in which the function sets a hook."""
VICTIM = int(os.environ.get("NVRX_TEST_VICTIM", "2"))


def first_hook(*error: object) -> None:
    """A user's hook, set before the first call."""


def second_hook(*error: object) -> None:
    """A user's hook, set in a function."""


class Rank:
    """One rank, and what it calls."""

    def __init__(self) -> None:
        self.record, self.me = Record.of_environment(), int(os.environ["RANK"])

    def fit(self, call: CallWrapper) -> float:
        make_group()
        self.record("fit", iteration=call.iteration)
        if self.record.call == HOOKS:
            sys.excepthook = second_hook
        if call.iteration == 0 and self.record.call in {*RAISES, DIES}:
            self.fail()
        return summed()

    def fail(self) -> None:
        dies = self.record.call == DIES
        if self.me == (VICTIM if dies else 1):
            self.record.await_others(dist.get_world_size() - 1, "fit", iteration=0)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("injected")
        dist.barrier()

    def run(self) -> None:
        functions = inprocess.Wrapper()(self.fit), inprocess.Wrapper()(validate)
        for self.record.call in range(int(os.environ["NVRX_TEST_CALLS"])):
            before, began = usage(), time.monotonic()
            result = functions[self.record.call % 2]()
            seconds, hook = time.monotonic() - began, getattr(sys.excepthook, "__name__", "")
            self.record("done", result=result, seconds=seconds, hook=hook, before=before, after=usage_after(before))


def make_group() -> None:
    """Rank 0 comes late by `NVRX_TEST_LATE` seconds: the others look for its address before it has written it."""
    time.sleep(float(os.environ.get("NVRX_TEST_LATE", "0")) if os.environ["RANK"] == "0" else 0)
    dist.init_process_group("gloo")


def validate() -> float:
    make_group()
    return summed()


def summed() -> float:
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return float(total)


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    settle()
    sys.excepthook = first_hook
    Rank().run()


if __name__ == "__main__":
    main()
