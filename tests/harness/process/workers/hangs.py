"""Ranks that run collectives until one of them stands still; each iteration has a target and a way of its own.

`NVRX_TEST_HANGS` has a list of [kind, target, step, slow rank], one for each iteration; the iteration after the last
one is completed. The slow rank comes late to every collective, as a straggler does. With `NVRX_TEST_RING` a rank
reduces with its neighbours only, in groups of two, and never in the default group.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from tests.harness.process.workers.record import Record

LATE = 0.02


def sleep(call: CallWrapper) -> None:
    """No bytecode runs."""
    time.sleep(1e6)


def lock(call: CallWrapper) -> None:
    """No bytecode runs, in a wait of Python's own."""
    mutex = threading.Lock()
    mutex.acquire()
    mutex.acquire()


def loop(call: CallWrapper) -> None:
    """Bytecode runs; pings were seen, and have ended."""
    call.ping()
    while True:
        time.sleep(0.001)


def livelock(call: CallWrapper) -> None:
    """Bytecode runs and pings come; only the others, who wait in a collective, tell that something is wrong."""
    while True:
        call.ping()
        time.sleep(0.001)


KINDS: dict[str, Callable[[CallWrapper], None]] = {each.__name__: each for each in (sleep, lock, loop, livelock)}


def main() -> None:
    hangs: list[Any] = json.loads(os.environ["NVRX_TEST_HANGS"])
    settings = json.loads(os.environ["NVRX_TEST_SETTINGS"])
    record = Record.of_environment()
    timeouts = {name: timedelta(seconds=value) for name, value in settings.items()}

    @inprocess.Wrapper(no_progress_limit=None, **timeouts)
    def train(call: CallWrapper) -> None:
        record("enter", iteration=call.iteration)
        dist.init_process_group("gloo")
        groups = ring() if os.environ.get("NVRX_TEST_RING") else [None]
        if call.iteration < len(hangs):
            until_the_hang(call, groups, *hangs[call.iteration])
        dist.destroy_process_group()

    train()
    record("done")


def ring() -> list[Any]:
    """The groups of this rank with its two neighbours, in the order in which all ranks use theirs."""
    size, me = dist.get_world_size(), dist.get_rank()
    pairs = [[rank, (rank + 1) % size] for rank in (*range(0, size, 2), *range(1, size, 2))]
    groups = [(pair, dist.new_group(pair)) for pair in pairs]
    return [group for pair, group in groups if me in pair]


def until_the_hang(call: CallWrapper, groups: list[Any], kind: str, target: int, at: int, slow: int) -> None:
    me = int(os.environ["RANK"])
    for step in count():
        if me == target and step == at:
            KINDS[kind](call)
        if me == slow:
            time.sleep(LATE)
        for group in groups:
            dist.all_reduce(torch.ones(1), group=group)


if __name__ == "__main__":
    main()
