"""Ranks whose function forks in iteration 0, before one of them fails; `NVRX_TEST_SHAPE` says what the children do.

Initial rank 1 forks inside an atomic section.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from nvrx_core import inprocess
from tests.harness.process.workers.record import Record

PATIENCE = 20.0
ENDS = ("returns", "raises", "exits 0", "exits 3", "ends at once")
rank_pid = os.getpid()


def body(call: inprocess.CallWrapper, end: str, record: Record) -> str:
    """What a child does, on all of which the wrapper's objects must be without effect."""
    call.ping()
    call.progress(1_000_000)
    with call.atomic():
        pass
    with call.disable_hang_protection():
        pass
    threads = [thread.name for thread in threading.enumerate()]
    record("child", end=end, threads=threads, alive=call.monitor_process.is_alive())
    match end:
        case "returns":
            return "of the child"
        case "raises":
            raise KeyError("of the child")
        case "exits 0":
            sys.exit(0)
        case "exits 3":
            sys.exit(3)
    os._exit(5)


def reaped(child: int) -> int:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    raise AssertionError(f"child {child} has not ended")


def load() -> None:
    """A loader whose workers are forked."""
    found = [int(batch.sum()) for batch in DataLoader(list(torch.arange(8)), batch_size=2, num_workers=2)]
    assert sorted(found) == [1, 5, 9, 13], found


def fork_each(call: inprocess.CallWrapper, record: Record) -> str | None:
    """Fork a child for each way to end, then wait for all; in a child, end in that way."""
    children = {}
    for end in ENDS:
        with call.atomic() if os.environ["RANK"] == "1" else nullcontext():
            children[end] = os.fork()
        if children[end] == 0:
            return body(call, end, record)
    for end, child in children.items():
        record("reaped", end=end, code=reaped(child))
    return None


def fork(call: inprocess.CallWrapper, shape: str, record: Record) -> str | None:
    """Fork; a text in a child that is to return."""
    match shape:
        case "a loader":
            load()
        case "a process":
            process = multiprocessing.get_context("fork").Process(target=body, args=(call, "exits 3", record))
            process.start()
            process.join()
            record("reaped", end="exits 3", code=process.exitcode)
        case "outlives":
            child = os.fork()
            if child == 0:
                time.sleep(3600)
            record("forked", child=child)
        case _:
            return fork_each(call, record)
    return None


def main() -> None:
    record, shape, me = Record.of_environment(), os.environ["NVRX_TEST_SHAPE"], int(os.environ["RANK"])

    @inprocess.Wrapper(thread_exceptions="fault")
    def train(call: inprocess.CallWrapper) -> int | str:
        dist.init_process_group("gloo")
        if call.iteration == 0 and (child := fork(call, shape, record)) is not None:
            return child
        dist.all_reduce(torch.ones(2))
        if call.iteration == 0:
            if me == 1:
                raise ValueError("injected")
            dist.all_reduce(torch.ones(2))
        dist.destroy_process_group()
        return call.iteration

    result = train()
    record("done" if os.getpid() == rank_pid else "child returned", result=result)


if __name__ == "__main__":
    main()
