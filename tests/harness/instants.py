"""Faults at drawn points, and at instants that a timer chooses; and campaigns of jobs with them, beside their twins.

A rank has `Instants`, which injects its own of the faults that all ranks draw alike, by the plan in `NVRX_TEST_DRAWN`
(JSON): `seed`, `faults` (how many iterations have one), `kinds` (`exception`, `hang`, `kill`), `two` (how often an
iteration has a second one) and `least` (no kill with so few ranks left); without it, it has none: that is the twin.
An exception at an instant is raised by the handler of a timer's signal: at whatever bytecode the main thread is, in
code of nvrx, torch and the trainer alike.

A `Campaign` runs jobs of such ranks, by variant and seed, and tells what in them is not as it has to be.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.harness.process.history import history
from tests.harness.process.job import Job, Template
from tests.harness.process.workers.plan import Plan
from tests.harness.process.workers.record import Record

__all__ = [
    "SPARED",
    "Campaign",
    "Drawn",
    "Injected",
    "Instants",
    "drawn_plan",
    "ended_otherwise",
    "follow",
    "frames",
    "main",
]

PR_SET_CHILD_SUBREAPER = 36
SPARED = frozenset({"__torch_dispatch__", "_acquireLock", "_releaseLock", "_clear_cache", "isEnabledFor"})
"""Functions in which no exception is raised at an instant, as none of nvrx's is: torch keeps a mode of fake tensors,
and aborts the process at the next one, or goes on without gradients; the lock of logging would stay held, in which
each later line of any thread would wait, that of nvrx's monitor thread, too."""


class Injected(RuntimeError):
    """The fault."""


@dataclass
class Drawn:
    """A fault of an iteration: at the `after`th time at a point, `delay` seconds later; without a point, that long
    after the iteration has begun. Without a victim, it is that of each rank that comes to the point."""

    victim: int | None
    kind: str
    point: str | None
    after: int = 1
    delay: float = 0.0


def drawn_plan(**defaults: Any) -> dict[str, Any]:
    """Return the plan of this rank's faults, and of what else its training has."""
    plan = {"seed": 0, "faults": 0, "kinds": ["exception"], "two": 0.3, "least": 1, **defaults}
    return {**plan, **json.loads(os.environ.get("NVRX_TEST_DRAWN", "{}"))}


@dataclass
class Instants:
    """The faults of this rank.

    Args:
        plan: see above.
        record: of this rank; it gets a line for each fault.
        draw: draws a fault, by the iteration and the number of ranks that train.
        last: draws one more, after the others, so that each iteration ends: a point may not be met.
        spared: names of functions in which no exception is raised at an instant.
        unwatched: names of functions in which there is no hang: one would end at a timeout of the whole process, or of
            the process group.
        told: names of functions that the line of a fault has as `within`, when it was in them.
        deaths: how many ranks are killed in one iteration, at most.
        again: seconds after which a fault at an instant is followed by an exception: it may be dropped, as in a
            `__del__`.
    """

    plan: Mapping[str, Any]
    record: Record
    draw: Callable[[random.Random, int, int], Drawn]
    last: Callable[[random.Random, int], Drawn]
    spared: frozenset[str] = SPARED
    unwatched: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()
    deaths: int = 4
    again: float | None = None
    mine: list[Drawn] = field(default_factory=list)
    armed: list[tuple[float, int, Drawn]] = field(default_factory=list)
    """By the instant."""
    hits: Counter[str] = field(default_factory=Counter)
    inside: bool = False
    iteration: int = -1

    def __post_init__(self) -> None:
        if self.plan["faults"]:
            signal.signal(signal.SIGALRM, self.at_instant)

    def begin(self, call: Any) -> None:
        """Draw the faults of an iteration, by its `CallWrapper`."""
        state = call.state
        rank = state.rank if state.active_rank is None else state.active_rank
        world = state.world_size if state.active_world_size is None else state.active_world_size
        self.mine, self.armed, self.hits = [], [], Counter()
        self.iteration, self.inside = call.iteration, True
        if call.iteration >= self.plan["faults"]:
            return
        draw = random.Random(f"{self.plan['seed']}:{call.iteration}")
        count = 1 + (draw.random() < self.plan["two"])
        drawn = [self.draw(draw, call.iteration, world) for _ in range(count)]
        may_die = min(self.deaths, state.world_size - self.plan["least"])
        for each in drawn:
            if each.kind == "kill":
                dies = 1 if each.victim is not None else 2  # of those that send, at most
                each.kind, may_die = ("kill" if may_die >= dies else "exception"), may_die - dies
        drawn.append(self.last(draw, world))
        mine = [each for each in drawn if each.victim in (rank, None)]
        self.mine = [each for each in mine if each.point is not None]
        for each in mine:
            if each.point is None:
                self.arm(each)

    def end(self) -> None:
        """Inject nothing until the next iteration."""
        self.inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def __call__(self, point: str) -> None:
        if not self.mine or not self.inside:
            return
        self.hits[point] += 1
        for each in list(self.mine):
            if each.point == point and self.hits[point] == each.after:
                self.mine.remove(each)
                if each.delay:
                    self.arm(each)
                else:
                    self.fire(each.kind, point)

    def arm(self, fault: Drawn) -> None:
        self.armed = sorted([*self.armed, (time.monotonic() + fault.delay, id(fault), fault)])
        self.wait()

    def wait(self) -> None:
        """Set the timer to the first of the instants."""
        left = self.armed[0][0] - time.monotonic() if self.armed else 0.0
        signal.setitimer(signal.ITIMER_REAL, max(left, 1e-6) if self.armed else 0.0)

    def at_instant(self, signum: int, frame: Any) -> None:
        if not self.inside or not self.armed:
            return
        if self.spared.intersection(each.f_code.co_name for each in frames(frame)):
            signal.setitimer(signal.ITIMER_REAL, 1e-3)
            return
        (_, _, fault), *self.armed = self.armed
        if self.again is None:
            self.wait()
        else:
            self.arm(Drawn(fault.victim, "exception", None, 0, self.again))
        self.fire(fault.kind, f"{fault.delay:.6f} s after {fault.point or 'the begin'}")

    def fire(self, kind: str, where: str) -> None:
        inside = list(frames(sys._getframe(2)))
        names = {each.f_code.co_name for each in inside}
        if kind == "hang" and self.unwatched & names:
            kind = "exception"
        landed = [f"{each.f_code.co_filename}:{each.f_lineno} {each.f_code.co_name}" for each in inside]
        within = sorted(self.told & names)
        self.record("fault", kind=kind, where=where, iteration=self.iteration, within=within, landed=landed[:12])
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "hang":
            threading.Event().wait(1000)
        raise Injected(where)


def frames(frame: Any) -> Iterator[Any]:
    """Return a frame and those that have called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def ended_otherwise(job: Job, codes: Mapping[int, int]) -> str:
    """Return what is to be said of ranks that have not ended with these codes; "" if all have."""
    rank = next((rank for rank, code in job.codes.items() if code != codes[rank]), None)
    return "" if rank is None else f"ranks have ended with {job.codes}: {job.errors(rank)[-3000:]}"


def follow(owner: Any, name: str, tell: Callable[[str], None], before: str, after: str = "") -> None:
    """Tell of the points before and after each call of a function of a module or a class."""
    call: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(call)
    def followed(*args: Any, **kwargs: Any) -> Any:
        tell(before)
        result = call(*args, **kwargs)
        if after:
            tell(after)
        return result

    setattr(owner, name, followed)


@dataclass
class Campaign(ABC):
    """Runs jobs with faults, and counts what has happened.

    Args:
        template: of the ranks.
        folder: for the files of the jobs; those of a job without a violation are removed.
    """

    VARIANTS: ClassVar[Mapping[str, Any]]
    """The kinds of training, and the faults that they have: by name, with how many ranks are started as `world`."""
    TEMPLATE: ClassVar[Path]
    """The program of the template."""
    WORKER: ClassVar[str]
    LIMIT: ClassVar[float] = 120
    """Seconds of a job, at most."""

    template: Template
    folder: Path
    faults: int = 0
    jobs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    _twins: dict[str, Job] = field(default_factory=dict)

    @abstractmethod
    def environment(self, name: str, seed: int, faults: int) -> Mapping[str, str]:
        """Return what a job with faults in so many iterations has in its environment."""

    @abstractmethod
    def count(self, job: Job) -> None:
        """Count what has happened in a job besides its faults."""

    @abstractmethod
    def examine(self, name: str, job: Job, faults: int) -> Iterator[str]:
        """Tell in what a job that has ended is not as it has to be."""

    def run(self, name: str, seed: int, faults: int) -> list[str]:
        """Run one job.

        Returns:
            Its violations.
        """
        job = self.job(f"{name}-{seed}", self.VARIANTS[name].world)
        try:
            job.start(self.WORKER, **self.environment(name, seed, faults)).finish(self.LIMIT)
            found = list(self.examine(name, job, faults))
        except AssertionError as error:
            found = [f"{error}\n{history(job)[-20000:]}"]
        injected = job.lines("fault")
        self.jobs, self.faults = self.jobs + 1, self.faults + len(injected)
        self.counts.update(f"{line['kind']}s" for line in injected)
        self.counts["faults at an instant"] += sum(" s after " in line["where"] for line in injected)
        self.counts["iterations with two faults"] += sum(
            count > 1 for count in Counter(line["iteration"] for line in injected).values()
        )
        self.count(job)
        self.violations += [f"{name}, seed {seed}: {each} ({job.directory})" for each in found]
        if not found:
            shutil.rmtree(job.directory)
        return found

    def runs(
        self, faults: int, each: int, seed: int, *, names: Sequence[str] = (), jobs: int | None = None
    ) -> Iterator[tuple[str, int, list[str]]]:
        """Run jobs of the variants in turn, until there were so many faults, or jobs; yield variant, seed, violations.

        Args:
            faults: how many, over all jobs.
            each: iterations of a job that have faults.
            seed: the first one.
            names: of the variants; all by default.
            jobs: at most so many.
        """
        for turn in itertools.count(seed):
            for name in names or self.VARIANTS:
                if self.faults >= faults or self.jobs == jobs:
                    return
                yield name, turn, self.run(name, turn, each)

    def job(self, name: str, world: int) -> Job:
        return Job(self.template, self.folder / name.replace(" ", "-").replace(",", ""), Plan(), world=world)

    def twin(self, name: str, world: int, environment: Mapping[str, str]) -> Job:
        """Return a job without faults, which has run once."""
        if name not in self._twins:
            job = self.job(f"{name}-twin", world)
            self._twins[name] = job.start(self.WORKER, **environment).finish(self.LIMIT)
        return self._twins[name]

    def figure(self) -> str:
        """Return what has happened, in lines."""
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return f"{self.faults} faults in {self.jobs} jobs, {len(self.violations)} violations; {counts}"


def main(campaign: type[Campaign[Any]], description: str | None, each: int) -> int:
    """Run a campaign by the options of a command line; `each` iterations of a job have faults, unless one says else."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=500, help="how many, over all jobs")
    parser.add_argument("--jobs", type=int, default=None, help="at most so many jobs")
    parser.add_argument("--each", type=int, default=each, help="iterations of a job that have faults")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--variant", action="append", choices=list(campaign.VARIANTS))
    parser.add_argument("--keep", type=Path, default=None, help="a folder for the files of jobs with a violation")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="nvrx-campaign-"))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the ranks are children of the template
    with closing(Template(campaign.TEMPLATE)) as template:
        running = campaign(template, folder)
        before = 0
        runs = running.runs(given.faults, given.each, given.seed, names=given.variant or (), jobs=given.jobs)
        for name, seed, found in runs:
            print(f"{name}, seed {seed}: {running.faults - before} faults", flush=True)
            before = running.faults
            for violation in found:
                print(f"  VIOLATION {violation}", flush=True)
    print(running.figure())
    return 1 if running.violations else 0
