"""A training over gloo under launchers, with sections: `stragglers.py PLAN`.

A plan is phases with spaces between them, `SECONDS:WHO` each, or `EVENT:WHO`, until a launcher has written that event.
In a phase of `data=R` or `forward=R`, rank R is slow in that section; in one of `all`, all ranks are slow in both; in
one of `noise`, other processes take the processors in turn; in one of `rank0`, rank 0 evaluates and writes now and
then, in the same sections; in one of `even`, nothing. `uneven` is for all phases: half the ranks have a heavier
forward, as stages of a pipeline have, and only every fourth rank loads data. A step takes some 10 ms.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from nvrx_core.fault_tolerance import RankMonitorClient

RANK = int(os.environ["RANK"])
client = RankMonitorClient()


@contextmanager
def section(name: str) -> Iterator[None]:
    client.start_section(name)
    yield
    client.end_section(name)


def compute(seconds: float) -> None:
    """Work for so much time of a processor."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(200))


def step(number: int, what: str, slow: int, *, uneven: bool) -> None:
    is_slow = slow == RANK or what == "all"
    with section("data"):
        time.sleep(0.04 if is_slow and what in ("data", "all") else 0 if uneven and RANK % 4 else 0.003)
    with section("forward"):
        compute((0.0015 if uneven and RANK % 2 else 0.001) * (8 if is_slow and what in ("forward", "all") else 1))
    dist.all_reduce(torch.ones(1000))
    if what == "rank0" and RANK == 0 and number % 10 == 0:
        for _ in range(10):
            with section("forward"):
                compute(0.004)
        time.sleep(0.1)


def burn(seconds: float) -> None:
    """Take a processor now and then, until the phase is over."""
    draw, until = random.Random(os.getpid()), time.monotonic() + seconds
    while time.monotonic() < until:
        compute(draw.uniform(0.01, 0.3))
        time.sleep(draw.uniform(0.0, 0.3))


def is_over(until: str, began: float) -> bool:
    """Whether so many seconds are over, or a launcher has written this event."""
    if until.isdigit():
        return time.monotonic() >= began + float(until)
    return any(f'"{until}"' in path.read_text() for path in Path(os.environ["NVRX_EVENTS_DIR"]).iterdir())


def main() -> None:
    plan = sys.argv[1].split()
    uneven = "uneven" in plan
    client.init_workload_monitoring()
    dist.init_process_group("gloo")
    for phase in plan:
        if phase == "uneven":
            continue
        until, _, who = phase.partition(":")
        what, _, slow = who.partition("=")
        child = 0
        if what == "noise" and RANK < 3 and not (child := os.fork()):
            burn(float(until))
            os._exit(0)
        began, number, go = time.monotonic(), 0, torch.ones(1)
        while go.item():
            step(number, what, int(slow or -1), uneven=uneven)
            number += 1
            if number % 10 == 0:
                if RANK == 0:
                    go.fill_(not is_over(until, began))
                dist.broadcast(go, 0)
        if child:
            os.waitpid(child, 0)
        if RANK == 0:
            print(
                f"phase {phase}: {number} steps, {1000 * (time.monotonic() - began) / number:.1f} ms each", flush=True
            )
    client.shutdown_workload_monitoring()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
