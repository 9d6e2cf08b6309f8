"""Ranks that hang in one shape after another: each iteration has a shape, and the one after the last is completed.

`NVRX_TEST_HANGS` has the names of the shapes. What a rank hangs in is the function that `SHAPES` names for it, so that
the place in a verdict can be told from any other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import fcntl
import importlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from tests.harness.process.workers.record import Record

WORLD = 4
FOREVER = 1e6
LARGE = 1 << 24


@dataclass(frozen=True)
class Shape:
    """One hang.

    Attributes:
        run: what rank `me` does; it does not return, but on ranks that have returned early.
        culprits: the ranks to blame; empty where none is.
        places: the functions in which they hang, any of them.
        says: what the sentence has to contain besides.
        outcome: of the verdict.
    """

    run: Callable[[int, Rank], object]
    culprits: tuple[int, ...] = (2,)
    places: tuple[str, ...] = ()
    says: str = ""
    outcome: str = "culprits"


@dataclass
class Rank:
    """What a shape may use."""

    call: CallWrapper
    pairs: list[Any]
    low: Any
    high: Any

    def reduce(self, group: Any = None) -> None:
        dist.all_reduce(torch.ones(1), group=group)


# Where a rank stands


def lock() -> None:
    mutex = threading.Lock()
    mutex.acquire()
    mutex.acquire()


def sleep() -> None:
    time.sleep(FOREVER)


def event() -> None:
    threading.Event().wait()


def empty_queue() -> None:
    queue.Queue[int]().get()


def receive() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def read_pipe() -> None:
    reader, writer = os.pipe()
    try:
        os.read(reader, 1)
    finally:
        os.close(reader)
        os.close(writer)


def child() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            process.wait()
        finally:
            process.kill()


def dead_worker() -> None:
    """A worker died with the lock that it was to release."""
    worker = subprocess.Popen(["false"])
    try:
        lock()
    finally:
        worker.wait()


def file_lock() -> None:
    with tempfile.NamedTemporaryFile() as held, open(held.name, "rb") as again:
        fcntl.flock(held, fcntl.LOCK_EX)
        fcntl.flock(again, fcntl.LOCK_EX)


def thread_join() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, daemon=True)
    thread.start()
    try:
        thread.join()
    finally:
        over.set()


def future() -> None:
    concurrent.futures.Future[int]().result()


def coroutine() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    asyncio.run(wait())


def open_fifo() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(f"{folder}/fifo")
        open(f"{folder}/fifo", "rb").close()


def await_signal() -> None:
    signal.pause()


def holds_gil() -> None:
    ctypes.PyDLL(None).sleep(int(FOREVER))


def pattern() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


def busy(rank: Rank) -> None:
    rank.call.ping()
    while True:
        sum(range(1000))


def livelock(rank: Rank) -> None:
    while True:
        rank.call.ping()
        time.sleep(0.001)


class Slow(Dataset[int]):
    """Samples of which one never comes."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 4:
            time.sleep(FOREVER)
        return index


def loader() -> None:
    for _ in DataLoader(Slow(), num_workers=1):
        pass


def missing_key(rank: Rank) -> None:
    rank.call.iteration_store().get("a-key-that-nobody-sets")


# What the others do


def others_reduce(stand: Callable[..., None], *arguments: str) -> Callable[[int, Rank], object]:
    def run(me: int, rank: Rank) -> None:
        rank.reduce()
        if me == 2:
            stand(rank) if stand in WITH_RANK else stand()
        rank.reduce()

    return run


def asynchronous(me: int, rank: Rank) -> None:
    if me == 2:
        lock()
    dist.all_reduce(torch.ones(1), async_op=True).wait()


def subgroups(me: int, rank: Rank) -> None:
    """Rank 3 keeps rank 2 in their group, and both keep the others in the default one."""
    if me == 3:
        lock()
    rank.reduce(rank.low if me < 2 else rank.high)
    rank.reduce()


def ring(me: int, rank: Rank) -> None:
    """Each rank waits for a neighbour, and only one of them for nobody."""
    for group in rank.pairs * 3:
        rank.reduce(group)
    if me == 1:
        sleep()
    for group in rank.pairs * 8:
        rank.reduce(group)


def pipeline(me: int, rank: Rank) -> None:
    """Activations go up and gradients come down; rank 1 does not pass on what it has received."""
    for step in range(3):
        if me > 0:
            dist.recv(torch.ones(4), src=me - 1)
        if me == 1 and step == 2:
            lock()
        if me < WORLD - 1:
            dist.send(torch.ones(4), dst=me + 1)
            dist.recv(torch.ones(4), src=me + 1)
        if me > 0:
            dist.send(torch.ones(4), dst=me - 1)


def large_send(me: int, rank: Rank) -> None:
    """Rank 0 cannot get rid of what rank 1 does not receive."""
    if me == 0:
        dist.send(torch.ones(LARGE), dst=1)
    if me == 1:
        sleep()
    rank.reduce()


def from_any(me: int, rank: Rank) -> None:
    if me == 3:
        event()
    if me == 0:
        dist.recv(torch.ones(1))
    rank.reduce()


def two_at_once(me: int, rank: Rank) -> None:
    if me == 1:
        lock()
    if me == 3:
        receive()
    rank.reduce()


def two_in_groups(me: int, rank: Rank) -> None:
    """One in each half, so that no rank waits for both."""
    if me == 1:
        sleep()
    if me == 2:
        read_pipe()
    rank.reduce(rank.low if me < 2 else rank.high)


def all_sleep(me: int, rank: Rank) -> None:
    sleep()


def each_from_the_next(me: int, rank: Rank) -> None:
    dist.recv(torch.ones(1), src=(me + 1) % WORLD)


def crossed_groups(me: int, rank: Rank) -> None:
    """Each rank enters the group with the next one first."""
    following = (me + 1) % WORLD
    for group in sorted(rank.pairs, key=lambda group: following not in dist.get_process_group_ranks(group)):
        rank.reduce(group)


def different_collectives(me: int, rank: Rank) -> None:
    dist.barrier() if me == 2 else rank.reduce()


def apart(me: int, rank: Rank) -> None:
    """Nobody waits for another rank by what torch knows."""
    [lock, sleep, receive, event][me]()


def returns_early(me: int, rank: Rank) -> None:
    if me != 2:
        rank.reduce()


def new_group(me: int, rank: Rank) -> None:
    if me == 2:
        sleep()
    dist.new_group([0, 1, 2, 3])


def objects(me: int, rank: Rank) -> None:
    if me == 2:
        lock()
    dist.broadcast_object_list([None], src=2)


def watched_barrier(me: int, rank: Rank) -> None:
    if me == 2:
        sleep()
    dist.monitored_barrier(timeout=timedelta(seconds=60))


def in_ddp() -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))


def backward(me: int, rank: Rank) -> None:
    model = in_ddp()
    for step in range(3):
        loss = model(torch.ones(2, 4)).sum()
        if me == 2 and step == 2:
            lock()
        loss.backward()


def in_a_hook(me: int, rank: Rank) -> None:
    model = in_ddp()
    output = model(torch.ones(2, 4))
    if me == 2:
        output.register_hook(lambda gradient: sleep())
    output.sum().backward()


def sections(me: int, rank: Rank) -> None:
    rank.reduce()
    if me == 2:
        rank.call.progress(3)
        sleep()
    rank.reduce()


def stopped(me: int, rank: Rank) -> None:
    if me == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    rank.reduce()


def gil_and_lock(me: int, rank: Rank) -> None:
    if me == 0:
        holds_gil()
    if me == 3:
        lock()
    rank.reduce()


WITH_RANK = (busy, livelock, missing_key)
BLOCKED = {
    lock: "a lock", sleep: "the end of a sleep", event: "a lock", empty_queue: "a lock", receive: "data from a socket",
    read_pipe: "data from a pipe", child: "a child process",
    dead_worker: "a lock, with dead child processes: false pid", file_lock: "a lock on /", thread_join: "a lock",
    future: "a lock", coroutine: "a descriptor", open_fifo: "the opening of a file", await_signal: "a signal",
    loader: "", missing_key: "a descriptor|data from", holds_gil: "in a call that holds the GIL",
    pattern: "in a call that holds the GIL", busy: "running", livelock: "",
}  # fmt: skip
SHAPES = {
    each.__name__: Shape(others_reduce(each), (2,), (each.__name__, "lock", "wait"), text)
    for each, text in BLOCKED.items()
} | {
    "asynchronous": Shape(asynchronous, (2,), ("lock",)),
    "subgroups": Shape(subgroups, (3,), ("lock",)),
    "ring": Shape(ring, (1,), ("sleep",)),
    "pipeline": Shape(pipeline, (1,), ("lock",), "ranks 0, 2-3 wait for it in recv"),
    "large_send": Shape(large_send, (1,), ("sleep",)),
    "from_any": Shape(from_any, (3,), ("event",)),
    "two_at_once": Shape(two_at_once, (1, 3), ("lock", "receive"), "ranks 0, 2 wait for them in all_reduce"),
    "two_in_groups": Shape(two_in_groups, (1, 2), ("sleep", "read_pipe")),
    "all_sleep": Shape(all_sleep, (), (), "ranks 0-3 at", outcome="alike"),
    "each_from_the_next": Shape(each_from_the_next, (), (), "wait for each other", outcome="wait for each other"),
    "crossed_groups": Shape(crossed_groups, (), (), "wait for each other", outcome="wait for each other"),
    "different_collectives": Shape(different_collectives, (2,), (), "rank 2 waits in barrier", outcome="mismatch"),
    "apart": Shape(apart, (), (), "rank 1 at", outcome="unknown"),
    "returns_early": Shape(returns_early, (2,), (), "has returned from the function"),
    "new_group": Shape(new_group, (2,), ("sleep",), "in the creation of a process group"),
    "objects": Shape(objects, (2,), ("lock",)),
    "watched_barrier": Shape(watched_barrier, (2,), ("sleep",)),
    "backward": Shape(backward, (2,), ("lock",)),
    "in_a_hook": Shape(in_a_hook, (2,), ("sleep",)),
    "sections": Shape(sections, (2,), ("sleep",)),
    "gil_and_lock": Shape(gil_and_lock, (0, 3), ("holds_gil", "lock")),
}
ENDS_A_RANK = {"stopped": Shape(stopped, (2,), (), "its process is stopped")}


def main() -> None:
    names: list[str] = json.loads(os.environ["NVRX_TEST_HANGS"])
    settings = json.loads(os.environ["NVRX_TEST_SETTINGS"])
    record = Record.of_environment()
    if "backward" in names:
        importlib.import_module("torch._dynamo")  # DDP imports it, in seconds on a busy machine
    timeouts = {name: timedelta(seconds=value) for name, value in settings.items()}

    @inprocess.Wrapper(no_progress_limit=None, **timeouts)
    def train(call: CallWrapper) -> None:
        record("enter", iteration=call.iteration)
        if call.iteration < len(names):
            hang(call, (SHAPES | ENDS_A_RANK)[names[call.iteration]])
        record("completed", iteration=call.iteration)

    train()
    record("done")


def hang(call: CallWrapper, shape: Shape) -> None:
    dist.init_process_group("gloo")
    me = dist.get_rank()
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [1, 2], [0, 3])]
    pairs = [groups[number] for number in ((0, 3), (0, 2), (2, 1), (1, 3))[me]]
    dist.barrier()
    rank = Rank(call, sorted(pairs, key=lambda group: groups.index(group) // 2), groups[0], groups[1])
    shape.run(me, rank)


if __name__ == "__main__":
    main()
