"""A rank of a job on CUDA devices: each iteration checks a collective, then blocks in a call until a fault ends it.

Ranks that share a device give NCCL a host of their own each (`NCCL_HOSTID`): it refuses two ranks of one host on one
device. They are connected by sockets then, as ranks of several hosts are.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nvrx_core.inprocess import CallWrapper, Compose, FrozenState, Wrapper, health_check
from nvrx_core.inprocess.abort import Abort, AbortPhase, AbortTorchDistributed
from nvrx_core.inprocess.finalize import ThreadedFinalize
from nvrx_core.testing import FaultKind, inject
from tests.harness.gpu.case import Case
from tests.harness.gpu.waits import KEPT_GRAPHS, WAITS
from tests.harness.process.workers.record import Record

FIRST = ("creation", "first_batch")
"""Waits in the group's first operation."""
TOGETHER = 0.3
"""Seconds from the last rank's entry into the call to the fault; a kernel of NCCL runs by then."""


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    case, rank = Case.of_environment(), int(os.environ["RANK"])
    os.environ["NCCL_HOSTID"] = f"host-of-{rank}"
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.ones(1, device="cuda")
    job = Job(case, rank)
    settings = {name: timedelta(seconds=value) for name, value in case.wrapper.items()}
    if case.wait == "kept_graph":
        settings["abort"] = Compose(AbortTorchDistributed(), ResetGraphs())
    if case.empty_cache:
        settings["finalize"] = ThreadedFinalize(timedelta(seconds=10), torch.cuda.empty_cache)
    if case.health:
        settings["health_check"] = health_check.CudaHealthCheck(timedelta(seconds=case.health))
    result = Wrapper(no_progress_limit=None, **settings)(job.function)()
    job.record("done", result=result)


class ResetGraphs(Abort):
    """Resets graphs that are kept outside the function: an abort of NCCL waits for them."""

    phase = AbortPhase.BEFORE_TORCH

    def __call__(self, state: FrozenState) -> FrozenState:
        while KEPT_GRAPHS:
            KEPT_GRAPHS.pop().reset()
        return state


class Job:
    """The wrapped function of one rank."""

    def __init__(self, case: Case, rank: int) -> None:
        self.case, self.me, self.record = case, rank, Record.of_environment()

    def function(self, call: CallWrapper) -> int:
        entered, self.call = time.monotonic(), call
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.record("enter", at=entered, iteration=call.iteration, world_size=world_size, **memory())
        timeout = timedelta(seconds=self.case.group_timeout)
        dist.init_process_group(self.case.backend, timeout=timeout, device_id=self.case.device())
        if self.case.wait not in FIRST or call.iteration == self.case.restarts:
            self.check(rank, world_size)
        self.record("right", iteration=call.iteration, monitor=held_by_monitor(call))
        if call.iteration < self.case.restarts:
            self.disturb(call.iteration, world_size)
        dist.destroy_process_group()
        return world_size

    def check(self, rank: int, world_size: int) -> None:
        """One collective of each device type of the backend gives the right value."""
        for device in ("cuda", "cpu") if "gloo" in self.case.backend else ("cuda",):
            value = torch.full((1 << 16,), rank + 1.0, device=device)
            dist.all_reduce(value)
            if not value.eq(world_size * (world_size + 1) / 2).all():
                raise AssertionError(f"a sum of {value[0]} from {world_size} ranks")

    def disturb(self, iteration: int, world_size: int) -> None:
        """The target has a fault once the others are in the call."""
        if self.me == self.case.target:
            self.record.await_others(world_size - 1, "wait", iteration=iteration)
            WAITS[self.case.before]() if self.case.before else None
            time.sleep(TOGETHER)  # noqa: TID251 - how long kernels run cannot be asked
            self.record("fault", iteration=iteration)
            WAITS[self.case.after]() if self.case.after else None
            inject(FaultKind(self.case.fault), call=self.call)
        self.record("wait", iteration=iteration)
        WAITS[self.case.wait]()


def memory() -> dict[str, int]:
    """Bytes: of torch's tensors, of torch's cache, and of the device as the driver counts them."""
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "used": total - free,
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
    }


def held_by_monitor(call: Any) -> list[str]:
    """What the monitor process has of the devices: open files and mappings."""
    process = Path(f"/proc/{call.monitor_process.pid}")
    names = [line.split()[-1] for line in (process / "maps").read_text().splitlines()]
    for file in (process / "fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            names.append(os.readlink(file))
    return sorted({name for name in names if name.startswith("/dev/nvidia")})


if __name__ == "__main__":
    main()
