"""A training rank: steps, collectives if the plan has them, and the faults of the plan.

The code that a user would write, plus a record of every event. Nothing here helps the wrapper: the process
group is made by a plain `init_process_group`, and only a function that returns destroys it.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nvrx_core.inprocess.call import monitor_link
from nvrx_core.inprocess.finalize import Finalize
from nvrx_core.testing import FaultKind, Point, failpoints, inject
from tests.harness.process.workers import assignments
from tests.harness.process.workers.disk import Checkpoints, Counter
from tests.harness.process.workers.plan import BEFORE_GROUP, BEFORE_INIT, INJECTIONS, ON_ENTRY, Plan, wrapper_settings
from tests.harness.process.workers.record import Record, settle, usage, usage_after
from tests.harness.process.workers.stores import store_settings

WARM = 3
"""Iterations after which nothing more is opened for good."""
COLLECT_EVERY = 20
"""Iterations; with a model that outlives them, a restart leaves the full collections to Python's own collector, which
the allocations of a training that is more than this one set off. They also empty the interpreter's free lists."""
GATED = 3
"""The step that waits for the test's go in a job without faults."""
real_time = time.time
ahead = memoryview(mmap.mmap(-1, 8)).cast("d")  # shared with the monitor process


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    plan, record = Plan.of_environment(), Record.of_environment()
    initial_rank = int(os.environ.get("RANK", "0"))
    set_clock_ahead(plan.clock_ahead.get(str(initial_rank), 0.0))
    start_monitor_after(plan.monitor_after.get(str(initial_rank)))
    settle()
    if plan.untidy:
        atexit.register(fail, "at exit")
    if plan.schedule().hits(initial_rank):
        failpoints.install(plan.schedule(), initial_rank=initial_rank, record=os.environ[INJECTIONS])
    train = wrapped(plan, record, initial_rank)
    for record.call in range(plan.calls):
        before, environment = usage(), dict(os.environ)
        try:
            result = train()
        except BaseException as error:
            record("raised", because=repr(error))
            raise
        changed = {key for key in {*environment, *os.environ} if environment.get(key) != os.environ.get(key)}
        record("done", result=result, before=before, after=usage_after(before), changed=sorted(changed))


def wrapped(plan: Plan, record: Record, initial_rank: int) -> Callable[..., int | None]:
    from nvrx_core import inprocess

    trainer = Trainer(plan, record, initial_rank)
    settings = wrapper_settings(plan)
    if seconds := plan.abort.get(str(initial_rank)):
        settings["abort"] = slow_abort(seconds, record)
    if plan.finalize_fails == initial_rank:
        settings["finalize"] = Failing()

    @inprocess.Wrapper(rank_assignment=assignment(plan, record), **settings, **store_settings(plan.kept_in))
    def train(call: inprocess.CallWrapper) -> int:
        entered = time.monotonic()
        return trainer(call, entered)

    return train


def assignment(plan: Plan, record: Record) -> Any:
    from nvrx_core import inprocess

    if plan.assignment:
        return assignments.named(plan.assignment, record)
    first = inprocess.rank_assignment.ActivateAllRanks()
    if plan.active is not None:
        first = inprocess.rank_assignment.MaxActiveWorldSize(plan.active)
    stages = [first, inprocess.rank_assignment.ShiftRanks()]
    if plan.die_in_assignment:
        stages.insert(0, mortal(plan, record))
    return inprocess.Compose(*stages)


def mortal(plan: Plan, record: Record) -> Any:
    """An assignment that kills a rank: after the barrier, before the entry."""
    from nvrx_core import inprocess

    class Mortal(inprocess.rank_assignment.RankAssignment):  # type: ignore[misc]
        def __call__(self, ctx):  # type: ignore[no-untyped-def]
            if plan.die_in_assignment.get(str(ctx.state.initial_rank)) == next(assignments):
                inject(FaultKind.KILL, stamp=lambda at: record("fault_injected", at=at, kind="kill"))
            return ctx

    assignments = count()
    return Mortal()


def slow_abort(seconds: float, record: Record) -> Any:
    """An abort that is delayed."""
    from nvrx_core.inprocess.abort import AbortTorchDistributed

    class Slow(AbortTorchDistributed):
        def __call__(self, state):  # type: ignore[no-untyped-def]
            record("abort", iteration=state.iteration)
            time.sleep(seconds)
            return super().__call__(state)

    return Slow()


class Failing(Finalize):
    """A finalize that raises."""

    def __call__(self, state: Any) -> Any:
        fail("in finalize")


class Untidy:
    """An object whose destructor raises."""

    def __del__(self) -> None:
        fail("in __del__")


def fail(where: str) -> None:
    raise ValueError(f"injected {where}")


class Trainer:
    """The wrapped function and its state."""

    def __init__(self, plan: Plan, record: Record, initial_rank: int) -> None:
        self.plan, self.record, self.me = plan, record, initial_rank
        self.schedule = plan.schedule()
        self.checkpoints = Checkpoints(plan.disk, record)
        self.model = Counter() if plan.model else None
        self.first = 0
        self.most = usage()

    def __call__(self, call, entered: float) -> int:  # type: ignore[no-untyped-def]
        self.call, self.iteration = call, call.iteration
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.record("enter", at=entered, iteration=self.iteration, rank=rank, world_size=world_size)
        try:
            return self.train(world_size)
        finally:
            self.record("leave", iteration=self.iteration, because=repr(sys.exception()))

    def train(self, world_size: int) -> int:
        self.inject(ON_ENTRY)
        self.join(world_size)
        if self.plan.save_every:
            self.first = self.checkpoints.resume(self.iteration)
        local = Untidy() if self.plan.untidy else None
        self.record("usage", iteration=self.iteration, untidy=local is not None, **self.usage())
        self.sections()
        for step in self.steps():
            self.inject(step)
            self.work(step, world_size)
            self.record("step", iteration=self.iteration, step=step)
            self.save(step + 1)
        if dist.is_initialized():
            dist.destroy_process_group()
        return world_size

    def usage(self) -> dict[str, int]:
        """What is held; the group of the last iteration, which another thread ends, may still be there at first."""
        if self.model is not None and self.iteration % COLLECT_EVERY == 0:
            gc.collect()
        if self.iteration >= WARM:
            return usage_after(self.most, seconds=0.2)
        now = usage()
        self.most = {name: max(now[name], most) for name, most in self.most.items()}
        return now

    def steps(self) -> Iterator[int]:
        endless = self.record.call == 0 and self.plan.runs_on(self.iteration)
        return iter(count(self.first) if endless else range(self.first, self.plan.steps))

    def join(self, world_size: int) -> None:
        if not (self.plan.collective or self.plan.group):
            self.inject(BEFORE_GROUP)
            return
        if Point(self.me, self.iteration, BEFORE_GROUP) in self.schedule.faults:
            self.record.await_others(world_size - 1, "enter", iteration=self.iteration)
            time.sleep(0.3)
        self.inject(BEFORE_GROUP)
        if self.iteration == 0:
            nap(self.plan.late.get(str(self.me), 0.0))
        if Point(self.me, self.iteration, BEFORE_INIT) in self.schedule.faults:
            store, rank, world_size = next(dist.rendezvous("env://"))
            self.inject(BEFORE_INIT)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        else:
            dist.init_process_group("gloo")
        if (dist.get_rank(), dist.get_world_size()) != (int(os.environ["RANK"]), world_size):
            raise AssertionError("the group is not that of the assignment")

    def sections(self) -> None:
        if (seconds := self.plan.atomic.get(str(self.me), 0.0)) and self.iteration == 0:
            with self.call.atomic():
                self.record("atomic", iteration=self.iteration)
                if self.injects_at_a_step():
                    self.record.await_others(1, "fault_injected")
                nap(seconds)
                self.record("atomic_end", iteration=self.iteration)
            nap(seconds)
        if (seconds := self.plan.unprotected.get(str(self.me), 0.0)) and self.iteration == 0:
            with self.call.disable_hang_protection():
                time.sleep(seconds)

    def work(self, step: int, world_size: int) -> None:
        if self.plan.progress:
            self.call.progress(step)
        if step == 2 and self.iteration == 0:
            set_clock_ahead(self.plan.clock_jump.get(str(self.me), 0.0))
        if step == 1:
            nap(self.plan.slow.get(str(self.me), 0.0))
        time.sleep(self.plan.step_seconds)
        if self.plan.collective:
            ones = torch.ones(4)
            dist.all_reduce(ones)
            if ones.tolist() != [world_size] * 4:
                raise AssertionError(f"all_reduce of ones gave {ones.tolist()} on {world_size} ranks")

    def save(self, done: int) -> None:
        """The first of the ranks saves what is done, in a section that no restart interrupts."""
        if self.plan.save_every:
            self.checkpoints.count_step()
            if done % self.plan.save_every == 0 and os.environ["RANK"] == "0":
                with self.call.atomic():
                    self.record("atomic", iteration=self.iteration)
                    self.checkpoints.save(done, self.iteration)
                    self.record("atomic_end", iteration=self.iteration)

    def injects_at_a_step(self) -> bool:
        return any(isinstance(place, Point) for place in self.schedule.of_iteration(self.iteration))

    def inject(self, step: int) -> None:
        point = Point(self.me, self.iteration, step)
        kind = self.schedule.due(point)
        if step == GATED and not self.schedule.faults:
            self.await_gate()
        if kind is None or self.record.call:
            return
        if step >= 0:
            self.await_others()
        self.meet(kind)
        store = self.call.iteration_store() if kind is FaultKind.HANG_STORE else None

        def stamp(at: float) -> None:
            self.record("fault_injected", at=at, kind=kind.value)

        inject(kind, call=self.call, store=store, stamp=stamp)

    def await_others(self) -> None:
        """Waits until a fault meets the others in the iteration, and in the atomic sections that they have in it."""
        self.record.await_others(int(os.environ["WORLD_SIZE"]) - 1, self.plan.after, iteration=self.iteration)
        if self.plan.atomic and self.iteration == 0:
            self.record.await_others(len(self.plan.atomic), "atomic", iteration=0)

    def await_gate(self) -> None:
        while self.plan.gate and not Path(self.plan.gate).exists():
            time.sleep(0.01)

    def meet(self, kind: FaultKind) -> None:
        """Waits for the test's go, and for the moment that several faults have in common.

        A rank that is to be killed then is killed, even if another one's fault is told a moment before.
        """
        self.await_gate()
        if self.plan.together:
            ranks = len(self.schedule.of_iteration(self.iteration))
            if kind is FaultKind.KILL:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            time.sleep(max(0.0, common_moment(Path(self.plan.together), ranks) - time.monotonic()))


def common_moment(path: Path, ranks: int) -> float:
    """The last to ask sets it; each rank adds its line by one write, and waits for those of the others."""
    with path.open("a", buffering=1) as lines:
        lines.write(f"{time.monotonic() + 0.3}\n")
    while len(moments := path.read_text().split()) < ranks:
        time.sleep(0.01)
    return max(map(float, moments))


def nap(seconds: float) -> None:
    """Sleep like a busy interpreter, while running bytecode."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def start_monitor_after(seconds: float | None) -> None:
    """Sets how long after the entry this rank's monitor process is started."""
    if seconds is not None:
        monitor_link.STARTS_AFTER = seconds  # type: ignore[misc]


def set_clock_ahead(seconds: float) -> None:
    """Sets the wall clock of this process and of those that it has forked since the first call."""
    if time.time is real_time:
        time.time = lambda: real_time() + ahead[0]
    ahead[0] = seconds


if __name__ == "__main__":
    main()
