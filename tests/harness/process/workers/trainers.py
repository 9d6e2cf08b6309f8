"""A trainer whose parts refer to each other, as those of training frameworks do; made anew in each iteration.

At the entry of each iteration a rank records what is left of the ones before. `NVRX_TEST_CASE` says whether there are
cycles, or only the exception refers to the trainer.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import signal
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from tests.harness.process.workers.record import Record

RESTARTS = 10


class Step(RuntimeError):
    """A failed step, which refers to what it was about."""

    def __init__(self, trainer: Any) -> None:
        super().__init__("injected")
        self.trainer = trainer


class Part:
    """A part of a trainer: a loop, a callback, a recorder."""

    def __init__(self, owner: Any = None) -> None:
        self.owner, self.memory = owner, torch.ones(1000)


class Trainer:
    """It knows its parts, and most of them know it."""

    def __init__(self, model: torch.nn.Module, cyclic: bool) -> None:
        self.ddp = DistributedDataParallel(model)
        self.optimizer = torch.optim.Adam(self.ddp.parameters())
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
        self.loops = [Part(self if cyclic else None)]
        self.callbacks = {"hook": functools.partial(self.fit, 0)} if cyclic else {}
        if cyclic:
            object.__setattr__(model, "trainer", self)
        self.recorder = Part()
        self.recorder.owner = {"myself": self.recorder} if cyclic else None
        self.batches = self.batch()

    def batch(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.ones(4, 8)

    def fit(self, fails_at: int) -> None:
        for step in range(1_000_000):
            if step == fails_at:
                raise Step(self)
            self.optimizer.zero_grad()
            self.ddp(next(self.batches) if fails_at < 0 else torch.ones(4, 8)).sum().backward()
            self.optimizer.step()
            self.scheduler.step()

    def parts(self) -> list[Any]:
        tensor = next(self.ddp.parameters())
        return [self, self.ddp, self.ddp.module, self.optimizer, self.scheduler, self.loops[0], self.recorder, tensor]


class Rank:
    """One rank, and weak references to all that its function has made."""

    def __init__(self) -> None:
        self.record, self.me = Record.of_environment(), int(os.environ["RANK"])
        self.cyclic = os.environ["NVRX_TEST_CASE"] == "cyclic"
        self.made: dict[int, list[weakref.ref[Any]]] = {}

    def train(self, call: CallWrapper) -> None:
        left = {
            iteration: [type(each).__name__ for reference in references if (each := reference()) is not None]
            for iteration, references in self.made.items()
        }
        self.record("left", iteration=call.iteration, alive={name: kinds for name, kinds in left.items() if kinds})
        if call.iteration == RESTARTS:
            return
        dist.init_process_group("gloo")
        self.fit(call.iteration)

    def fit(self, iteration: int) -> None:
        trainer = Trainer(torch.nn.Linear(8, 2), self.cyclic)
        self.made[iteration] = [weakref.ref(part) for part in trainer.parts()]
        try:
            trainer.fit(5 if self.me == iteration % 2 else -1)
        except Step as error:
            self.made[iteration].append(weakref.ref(error))
            raise


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rank = Rank()
    inprocess.Wrapper(no_progress_limit=None)(rank.train)()
    rank.record("done")


if __name__ == "__main__":
    main()
