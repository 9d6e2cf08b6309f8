"""Ranks that run collectives until one of them stands still; each iteration has a victim and a way of its own.

`NVRX_TEST_HANGS` has a list of [kind, victim, step, slow rank], one for each iteration; the iteration after the last
one is completed. The slow rank comes late to every collective, as a straggler does.
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
        if call.iteration < len(hangs):
            until_the_hang(call, *hangs[call.iteration])
        dist.destroy_process_group()

    train()
    record("done")


def until_the_hang(call: CallWrapper, kind: str, victim: int, at: int, slow: int) -> None:
    me = int(os.environ["RANK"])
    for step in count():
        if me == victim and step == at:
            KINDS[kind](call)
        if me == slow:
            time.sleep(LATE)
        dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    main()
