"""A training as users write it: DDP and SGD made inside the function, a checkpoint in an atomic section, and faults.

torch imports most of itself when the first optimizer and the first DDP are made, so the first second of a job is an
import. A fault is injected a number of seconds after the entry: in the main thread, before or after the optimizer is
made, or from another thread, wherever the main thread is.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import queue
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nvrx_core.inprocess import CallWrapper, Wrapper
from nvrx_core.testing import FaultKind, inject
from tests.harness.process.workers.faults import CHAOS, WORLD, Planned, held_by_group, plan_of
from tests.harness.process.workers.record import Record, descriptors, settle, usage, usage_after

SAVE_EVERY = 5


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    plan = json.loads(os.environ[CHAOS])
    training = Training(plan_of(plan["seed"]), plan["steps"])
    settings = {name: timedelta(seconds=value) for name, value in plan["wrapper"].items()}
    settle()
    threading.Thread(target=training.inject_from_aside, daemon=True).start()
    before = usage()
    result = Wrapper(no_progress_limit=None, **settings)(training.function)()
    gc.collect()
    after = usage_after(before, kept=held_by_group(WORLD))
    training.record("done", result=result, before=before, after=after, open=descriptors())


class Training:
    """The wrapped function of one rank."""

    def __init__(self, faults: list[Planned], steps: int) -> None:
        self.record, self.me, self.steps = Record.of_environment(), int(os.environ["RANK"]), steps
        self.faults = faults
        self.checkpoint = Path(os.environ["NVRX_TEST_CHECKPOINTS"], "last")
        self.aside: queue.SimpleQueue[tuple[int, float, Planned]] = queue.SimpleQueue()
        self.inside = -1

    def function(self, call: CallWrapper) -> int:
        entered = time.monotonic()
        self.call, iteration = call, call.iteration
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.record("enter", at=entered, iteration=iteration, rank=rank, world_size=world_size)
        try:
            self.inside = iteration
            return self.train(iteration, entered, rank, world_size)
        finally:
            self.inside = -1
            self.record("leave", iteration=iteration)

    def train(self, iteration: int, entered: float, rank: int, world_size: int) -> int:
        planned = [fault for fault in self.faults if fault.iteration == iteration]
        self.mine = next((fault for fault in planned if fault.initial_rank == self.me), None)
        self.due = entered + self.mine.after if self.mine else float("inf")
        if self.mine and self.mine.place == "aside":
            self.aside.put((iteration, self.due, self.mine))
        self.inject_at("entry")
        dist.init_process_group("gloo")
        torch.manual_seed(7)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
        self.inject_at("optimizer")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = self.resume(iteration, model)
        while step < self.steps or planned:
            if time.monotonic() >= self.due:
                self.inject_at("step")
            optimizer.zero_grad()
            model(torch.ones(4, 16) * (rank + 1)).square().mean().backward()
            optimizer.step()
            step += 1
            self.record("step", iteration=iteration, step=step)
            self.call.progress(step)
            self.save(step, iteration, model)
            time.sleep(0.002)
        self.compare(model, world_size)
        dist.destroy_process_group()
        return world_size

    def resume(self, iteration: int, model: Any) -> int:
        """All ranks go on from the same step: the first rank's file, read once all are there."""
        dist.barrier()
        step = 0
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint)
            model.module.load_state_dict(saved["model"])
            step = saved["step"]
        steps = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, torch.tensor([step]))
        if {int(other) for other in steps} != {step}:
            raise AssertionError(f"the ranks resume from {steps}")
        self.record("resume", iteration=iteration, step=step)
        return step

    def save(self, step: int, iteration: int, model: Any) -> None:
        if step % SAVE_EVERY == 0 and os.environ["RANK"] == "0":
            with self.call.atomic():
                self.record("atomic", iteration=iteration)
                unfinished = self.checkpoint.with_suffix(".unfinished")
                torch.save({"model": model.module.state_dict(), "step": step}, unfinished)
                unfinished.replace(self.checkpoint)
                self.record("atomic_end", iteration=iteration)

    def compare(self, model: Any, world_size: int) -> None:
        """The parameters are finite, and the same on all ranks."""
        mine = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        others = [torch.zeros_like(mine) for _ in range(world_size)]
        dist.all_gather(others, mine)
        if not mine.isfinite().all() or not all(mine.equal(other) for other in others):
            raise AssertionError("the ranks have different parameters")

    # Faults

    def inject_at(self, place: str) -> None:
        """In the main thread; one that comes before the time waits for it."""
        if self.mine and self.mine.place == place:
            time.sleep(max(0.0, self.due - time.monotonic()))
            self.inject(self.mine)

    def inject_from_aside(self) -> None:
        while True:
            iteration, due, fault = self.aside.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if self.inside == iteration:
                self.inject(fault)

    def inject(self, fault: Planned) -> None:
        kind = FaultKind(fault.kind)
        self.record("fault_injected", iteration=fault.iteration, kind=kind.value)
        inject(kind, call=self.call)


if __name__ == "__main__":
    main()
