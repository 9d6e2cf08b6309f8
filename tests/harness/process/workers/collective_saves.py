"""`torch.distributed.checkpoint`: a sharded tensor is saved repeatedly, and a fault is injected inside a save.

All elements of the tensor are the number of the save. A checkpoint is there when torch has written its `.metadata`; the
next iteration loads the last one and asserts that it is of one save and not older than the last one that ended.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from contextlib import nullcontext
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from nvrx_core.inprocess import CallWrapper, Wrapper
from nvrx_core.testing import inject
from tests.harness.process.workers.record import Record

SAVES = "NVRX_TEST_SAVES"
TARGET, FAULTY_SAVE = 1, 3


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    plan = json.loads(os.environ[SAVES])
    saves = Saves(plan["asynchronous"], plan["atomic"], plan["fault"], plan["place"])
    settings = {name: timedelta(seconds=value) for name, value in plan["wrapper"].items()}
    Wrapper(no_progress_limit=None, **settings)(saves.function)()
    saves.record("done")


class Saves:
    """The wrapped function of one rank."""

    def __init__(self, asynchronous: bool, atomic: bool, fault: str, place: str) -> None:
        self.record, self.me = Record.of_environment(), int(os.environ["RANK"])
        self.asynchronous, self.atomic, self.fault, self.place = asynchronous, atomic, fault, place
        self.folder = Path(os.environ["NVRX_TEST_CHECKPOINTS"])

    def function(self, call: CallWrapper) -> None:
        self.record("enter", iteration=call.iteration, world_size=int(os.environ["WORLD_SIZE"]))
        dist.init_process_group("gloo")
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        first = self.load() + 1
        for number in range(first, first + 3) if call.iteration else count(1):
            fails = self.me == TARGET and number == FAULTY_SAVE and not call.iteration
            if fails and self.place == "before":
                self.inject()
            with call.atomic() if self.atomic else nullcontext():
                self.save(number, fails and self.place == "inside")
            self.record("saved", number=number, iteration=call.iteration)
        assert self.load() == first + 2
        dist.destroy_process_group()

    def state(self, number: int) -> dict[str, Any]:
        return {"numbers": distribute_tensor(torch.full((24, 4), float(number)), self.mesh, [Shard(0)])}

    def save(self, number: int, fails: bool) -> None:
        writer = FailingWriter(self) if fails else dcp.FileSystemWriter(self.path(number))
        if self.asynchronous:
            dcp.async_save(self.state(number), storage_writer=writer).result()
        else:
            dcp.save(self.state(number), storage_writer=writer)

    def path(self, number: int) -> Path:
        return self.folder / f"save-{number}"

    def load(self) -> int:
        """The number of the last save that is there; 0 for none."""
        numbers = [int(path.parent.name.removeprefix("save-")) for path in self.folder.glob("save-*/.metadata")]
        if not numbers:
            return 0
        state = self.state(0)
        dcp.load(state, storage_reader=dcp.FileSystemReader(self.path(max(numbers))))
        assert set(state["numbers"].full_tensor().flatten().tolist()) == {float(max(numbers))}
        self.record("loaded", number=max(numbers))
        return max(numbers)

    def inject(self) -> None:
        self.record("fault_injected", kind=self.fault)
        inject(self.fault)


class FailingWriter(dcp.FileSystemWriter):
    """Writes its part, and fails before torch records it."""

    def __init__(self, saves: Saves) -> None:
        super().__init__(saves.path(FAULTY_SAVE))
        self.saves = saves

    def write_data(self, *arguments: Any, **more: Any) -> Any:
        super().write_data(*arguments, **more)
        self.saves.inject()


if __name__ == "__main__":
    main()
