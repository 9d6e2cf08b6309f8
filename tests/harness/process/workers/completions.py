"""Ranks 0 and 2 complete, or meet; rank 1 does in iteration 0 what `NVRX_TEST_CASE` says.

In the case "slow", the completion of all of them takes long.
"""

import os
import sys
import time
from datetime import timedelta

import torch.distributed as dist

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from tests.harness.process.workers.record import Record

CASE, ME = os.environ["NVRX_TEST_CASE"], int(os.environ["RANK"])
BOUND = timedelta(seconds=2)
HARD = timedelta(seconds=4)


class Upload(inprocess.completion.Completion):
    """Takes longer than the hard timeout, once all ranks are complete."""

    def __call__(self, state: inprocess.FrozenState) -> inprocess.FrozenState:
        time.sleep(1.5 * HARD.total_seconds())
        return state


def slow_completion(record: Record) -> None:
    @inprocess.Wrapper(soft_timeout=HARD / 2, hard_timeout=HARD, completion=Upload())
    def train() -> int:
        return 0

    record("done", result=train())


def main() -> None:
    record = Record.of_environment()
    if CASE == "slow":
        slow_completion(record)
        return

    @inprocess.Wrapper(completion_timeout=BOUND if CASE == "late" else timedelta(seconds=120))
    def train(call: CallWrapper) -> int:
        record("enter", iteration=call.iteration)
        if call.iteration == 0 and ME == 1:
            if CASE == "late":
                time.sleep(60)
            time.sleep(0.5)
            sys.exit(0)
        if CASE == "late" and call.iteration:
            record.await_others(1, "enter", iteration=call.iteration)
        if CASE == "rendezvous":
            dist.init_process_group("gloo")
            dist.destroy_process_group()
        if CASE == "late rendezvous":
            time.sleep(3.0 * ME)
            dist.init_process_group("gloo", world_size=2, rank=ME // 2)
            dist.destroy_process_group()
        return call.iteration

    record("done", result=train())


if __name__ == "__main__":
    main()
