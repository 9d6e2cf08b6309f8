"""What a process group costs more inside a wrapped function: creation with and without the observer of groups.

`python tests/benchmarks/groups.py [GROUPS] [ROUNDS]`. Both run alternately, and the medians of all rounds are compared:

- gloo: groups of two ranks, both of them members, each with its own connections; two processes. A tenth of the number:
  a thousand would be 6,000 threads.
- no member: groups of which this rank is no member, as most of those of a large job are. torch's fake backend stands
  for a job of 1,024 ranks, and does nothing else.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.progress.page import Page

RANKS = 1024
MAIN = os.getpid()
"""The process that prints; its forked peer does not."""
Begin = Callable[[int], None]


def main(groups: int = 1000, rounds: int = 7) -> None:
    """Print a line for each case."""
    endpoint = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    peer = os.fork()
    rank = int(peer == 0)
    meeting = dist.TCPStore("127.0.0.1", endpoint.port, wait_for_workers=False)
    compare("gloo", groups // 10, rounds, begin_gloo(meeting, rank), [0, 1])
    if rank:
        os._exit(0)
    os.waitpid(peer, 0)
    compare("no member", groups, rounds, begin_fake, [1, 2])


def begin_gloo(meeting: dist.Store, rank: int) -> Begin:
    """Return what begins a round of the two processes."""

    def begin(number: int) -> None:
        store = dist.PrefixStore(str(number), meeting)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)

    return begin


def begin_fake(number: int) -> None:
    """Begin a round that is rank 0's of many."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)


def compare(name: str, groups: int, rounds: int, begin: Begin, members: list[int]) -> None:
    """Print the medians, microseconds a group."""
    without, observed = list[float](), list[float]()
    for number in range(2 * rounds):
        begin(number)
        (observed if number % 2 else without).append(seconds(groups, members, observe=bool(number % 2)) / groups * 1e6)
        dist.destroy_process_group()
    bare, more = statistics.median(without), statistics.median(observed)
    if os.getpid() == MAIN:
        print(f"{name}: {bare:.1f} us without, {more:.1f} us with, ratio {more / bare:.3f}, of {rounds} rounds")


def seconds(groups: int, members: list[int], *, observe: bool) -> float:
    """Return how long the creation of so many groups takes."""
    with ExitStack() as stack:
        if observe:
            page = Page(RANKS)
            page.begin_round(0, 0, RANKS)
            stack.callback(page.close)
            observer = GroupObserver(page)
            observer.install()
            stack.callback(observer.uninstall)
            observer.begin()
        began = time.perf_counter()
        for _ in range(groups):
            dist.new_group(members)
        return time.perf_counter() - began


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
