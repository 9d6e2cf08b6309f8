"""P10: a fault told to 16,384 ranks, their barrier, their new ranks, over a real TCPStore with a connection for each.

    python tests/benchmarks/scale.py [--ranks N] [--rounds N]

The store is the product's, in a process of its own (`python -m nvrx_core.store`). A rank of a job has three connections
to it, of which two are idle while the third is used; here each has one, more would pass the limit of open files. The
ranks are played by a few processes (`crowd.py`), each connection by itself (`wire.py`). What 16,384 ranks compute side
by side, this machine computes one after the other: so a restart is measured in stages. The figure is the traffic of
all, the decision by the last one to arrive, and what one rank computes; the sum with the work of all is printed, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from crowd import KEYS

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.protocol.death_report import DeathReport
from tests.harness.process.template import resolve_by_files_only
from tests.harness.store_actions import carry_out

__all__ = ["Measured", "Restart", "measure", "report"]

HERE = pathlib.Path(__file__).resolve().parent
RANKS, CROWDS, ROUNDS = 16_384, 2, 5
SETTLED = 0.2


@dataclass(frozen=True)
class Stage:
    """One stage of a round over all crowds, in seconds: wall, CPU of the crowds and of the store, the decision."""

    wall: float
    crowd: float
    store: float
    closing: float
    ranks: int


@dataclass(frozen=True)
class Restart:
    """One restart."""

    event: Stage
    see: Stage
    barrier: Stage
    enter: Stage

    @property
    def own(self) -> float:
        """What one rank computes."""
        return self.see.crowd / self.see.ranks + self.enter.crowd / self.enter.ranks

    @property
    def figure(self) -> float:
        """Fault told to new ranks, each rank on a core of its own."""
        return self.event.wall + self.barrier.wall + self.own

    @property
    def in_all(self) -> float:
        """The same, with what all ranks compute on this machine."""
        return sum(stage.wall for stage in (self.event, self.see, self.barrier, self.enter))

    @property
    def store(self) -> float:
        """CPU seconds of the store."""
        return self.event.store + self.barrier.store


@dataclass(frozen=True)
class Measured:
    """One run: what was open in the store's process, the first barrier, one beat of all leases, the restarts."""

    connections: int
    first: Stage
    beat: Stage
    restarts: list[Restart]

    def samples(self) -> dict[str, list[float]]:
        """Seconds by metric."""
        return {
            "p10": [r.figure for r in self.restarts],
            "p10.event": [r.event.wall for r in self.restarts],
            "p10.decision": [r.barrier.closing for r in self.restarts],
            "p10.store": [r.store for r in self.restarts],
            "p10.own": [r.own for r in self.restarts],
            "p10.all": [r.in_all for r in self.restarts],
            "p10.first": [self.first.wall],
            "p10.lease": [self.beat.store],
        }


class Field:
    """A store and the crowds around it."""

    def __init__(self, ranks: int, stack: contextlib.ExitStack) -> None:
        self.members = frozenset(range(ranks))
        self.store = self._start(stack, ["-m", "nvrx_core.store"])
        host, port = self._line(self.store).strip().split(":")
        self.crowds = []
        for i in range(CROWDS):
            mine = [str(ranks * (i + step) // CROWDS) for step in (0, 1)]
            command = [str(HERE / "crowd.py"), host, port, str(ranks), *mine, f"127.0.0.{i + 2}"]
            self.crowds.append(self._start(stack, command))
        self.connected = sum(json.loads(self._line(crowd))["connected"] for crowd in self.crowds)
        patience = timedelta(seconds=60)
        self.client = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=patience)

    def _start(self, stack: contextlib.ExitStack, arguments: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"P10: {process.args} has ended")
        return line

    def connections(self) -> int:
        """How many connections the store's process holds, as the kernel counts them."""
        sockets = [os.readlink(f) for f in _files(self.store.pid)]
        return sum(name.startswith("socket:") for name in sockets)

    def begin(self, stage: str, number: int) -> float:
        """Has all crowds begin a stage; returns the CPU seconds of the store before."""
        before = cpu_of(self.store.pid)
        for crowd in self.crowds:
            assert crowd.stdin is not None
            crowd.stdin.write(f"{stage} {number}\n")
            crowd.stdin.flush()
        return before

    def end(self, before: float, since: float | None = None) -> Stage:
        """Waits until all have done so."""
        said = [json.loads(self._line(crowd)) for crowd in self.crowds]
        begin = min(one["begin"] for one in said) if since is None else since
        return Stage(
            wall=max(one["end"] for one in said) - begin, crowd=sum(one["cpu"] for one in said),
            store=cpu_of(self.store.pid) - before, closing=max(one["closing"] for one in said),
            ranks=int(sum(one["ranks"] for one in said)),
        )  # fmt: skip

    def stage(self, stage: str, number: int) -> Stage:
        """Has all crowds play a stage."""
        return self.end(self.begin(stage, number))

    def kill(self, iteration: int, member: int) -> None:
        """Does what the monitor process of a dead rank does."""
        now = time.monotonic()
        fault = FaultRecord(
            initial_rank=member, rank=-1, interruption="TERMINATED", message="process ended by SIGKILL", occurred=now,
            announced=now, wall=time.time(), boot_id="e8a06dc0-7a0c-4b5c-b2a8-1d5b7f2a4c11", host="node-0", pid=1,
        )  # fmt: skip
        death_report = DeathReport(iteration, member, self.members, fault)
        carry_out(ControlStore(GuardedStore(self.client), KEYS), death_report, death_report.died())
        self.members -= {member}

    def restart(self, iteration: int, member: int) -> Restart:
        """One rank dies; the others restart without it."""
        self.stage("wait", iteration)
        self.stage("lose", member)
        threading.Event().wait(SETTLED)
        before, since = self.begin("event", iteration), time.monotonic()
        self.kill(iteration, member)
        event = self.end(before, since)
        see = self.stage("see", iteration)
        barrier = self.stage("barrier", iteration)
        enter = self.stage("enter", iteration)
        self.stage("places", iteration)
        return Restart(event, see, barrier, enter)


def _files(pid: int) -> Iterator[str]:
    for entry in os.scandir(f"/proc/{pid}/fd"):
        yield entry.path


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and all its threads."""
    nanoseconds = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def measure(ranks: int = RANKS, rounds: int = ROUNDS) -> Measured:
    """The store's connections, its load by leases, the first barrier, and some restarts."""
    with contextlib.ExitStack() as stack:
        field = Field(ranks, stack)
        field.stage("arrive", -1)
        threading.Event().wait(1.0)  # the last connections are accepted
        connections = field.connections()
        first = field.stage("barrier", -1)
        field.stage("enter", -1)
        beats = [field.stage("beat", beat) for beat in range(3)]
        lost = random.Random(1).sample(range(ranks), rounds)
        restarts = [field.restart(iteration, member) for iteration, member in enumerate(lost)]
        return Measured(connections, first, beats[-1], restarts)


def report(measured: Measured) -> list[str]:
    """Lines that say what the figure is made of; medians."""

    def ms(value: Callable[[Restart], float]) -> str:
        return f"{statistics.median(map(value, measured.restarts)) * 1e3:.0f} ms"

    own, first, ranks = (
        statistics.median(r.own for r in measured.restarts),
        measured.first,
        measured.restarts[0].see.ranks,
    )
    cores = len(os.sched_getaffinity(0))
    return [
        f"{measured.connections} sockets of the store's process, {len(measured.restarts)} restarts of {ranks} ranks",
        f"fault told until all have heard of it: {ms(lambda r: r.event.wall)}",
        f"first arrival until all have read the decision: {ms(lambda r: r.barrier.wall)}",
        f"of it, from the last arrival to the decision: {ms(lambda r: r.barrier.closing)}",
        f"what one rank computes, ShiftRanks included: {own * 1e6:.0f} us",
        f"in all: {ms(lambda r: r.figure)}; if {cores} cores compute for all ranks: {ms(lambda r: r.in_all)}",
        f"CPU time of the store, which has one thread: {ms(lambda r: r.store)}",
        f"CPU time of the clients' sending and receiving: {ms(lambda r: r.event.crowd + r.barrier.crowd)}",
        f"first barrier: {first.wall * 1e3:.0f} ms, of it the decision {first.closing * 1e3:.0f} ms",
        f"leases: {measured.beat.store * 1e3:.0f} ms of the store's CPU time in each heartbeat_interval",
    ]


def main() -> None:
    """Prints what the figure is made of, and the samples as JSON on standard output."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    resolve_by_files_only()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is ended
    measured = measure(options.ranks, options.rounds)
    print("\n".join(report(measured)), file=sys.stderr)
    print(json.dumps(measured.samples()))


if __name__ == "__main__":
    main()
