"""Threads of iteration 0 that go on in iteration 1, and come to a collective of the default group there.

`NVRX_TEST_WAY` names the function below that begins them. On rank 0 the thread goes on when the main threads have made
the next default group, and the main thread waits until it has begun a collective there, or has ended; on rank 1 it goes
on behind the first collective of the main threads. `handler` has no thread: the function of rank 0 handles the
interruption.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from nvrx_core.inprocess import CallWrapper, Wrapper
from nvrx_core.process.torch_calls import collectives_begun
from tests.harness.process.workers.record import Record

__all__: list[str] = []

WITHIN = 15.0
folder = Path(os.environ["NVRX_TEST_CHECKPOINTS"]) / "save"
me, way = int(os.environ["RANK"]), os.environ["NVRX_TEST_WAY"]
record = Record.of_environment()
begun, go_on = threading.Event(), threading.Event()
executor = ThreadPoolExecutor(1)
left: list[Future[Any]] = []


def train(call: CallWrapper) -> None:
    record("enter", iteration=call.iteration)
    if call.iteration and way == "staged_late":
        go_on.set()
        record("outcome", error=str(left[0].exception(WITHIN)), complete=(folder / ".metadata").exists())
    dist.init_process_group("gloo")
    if call.iteration == 0:
        globals()[way]()
        begun.wait(WITHIN)
        record("begun")
        record.await_others(1, "begun")
        if me == 1:
            raise RuntimeError("injected while a thread is at work")
        try:
            threading.Event().wait()
        except BaseException:
            if way == "handler":
                save_as_if_nothing_was()
            raise
    if me == 0 and left:
        go_on.set()
        await_end_or_collective()
    found = gather(me)
    record("gathered", values=found)
    go_on.set()
    if left and way != "staged_late":
        record("outcome", error=str(left[0].exception(WITHIN)))
    if way == "pool":
        record("next", values=executor.submit(gather, 10 + me).result(WITHIN))
    if way == "compiled":
        record("next", values=torch.compile(reduce, fullgraph=True, backend="eager")(torch.ones(2)).tolist())
    dist.destroy_process_group()


def reduce(numbers: torch.Tensor) -> torch.Tensor:
    if dist.is_initialized():
        dist.all_reduce(numbers)
    return numbers


def gather(value: int) -> list[int]:
    found = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(found, torch.tensor([value]))
    return [int(each) for each in found]


def await_end_or_collective() -> None:
    end = time.monotonic() + WITHIN
    while not left[0].done() and collectives_begun(dist.group.WORLD) == 0:
        assert time.monotonic() < end, "the thread of iteration 0 neither ends nor begins a collective"
        time.sleep(0.005)


def hold() -> None:
    """Wait in a thread, as a long write does."""
    begun.set()
    go_on.wait()


class SlowWriter(dcp.FileSystemWriter):
    def write_data(self, *arguments: Any, **more: Any) -> Any:
        written = super().write_data(*arguments, **more)
        hold()
        return written


class LateStager:
    """Copies a state in the background, as those of torch do for accelerators."""

    should_synchronize_after_execute = False

    def stage(self, state: dict[str, Any]) -> Any:
        staged = Future[dict[str, Any]]()

        def copy() -> None:
            hold()
            staged.set_result(state)

        threading.Thread(target=copy, daemon=True).start()
        return staged

    def synchronize_staging(self) -> None: ...

    def close(self) -> None: ...


def state() -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2,))
    return {"numbers": distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])}


def async_save() -> None:
    left.append(dcp.async_save(state(), storage_writer=SlowWriter(folder)))  # type: ignore[arg-type]


def staged_late() -> None:
    warnings.simplefilter("ignore")
    response: Any = dcp.async_save(state(), checkpoint_id=str(folder), async_stager=LateStager())
    left.append(response.upload_completion)


def handler() -> None:
    """Leave no thread at work."""
    begun.set()


compiled = handler


def save_as_if_nothing_was() -> None:
    try:
        dcp.save({"numbers": torch.ones(1)}, checkpoint_id=str(folder))
    except RuntimeError as error:
        record("refused", error=str(error), complete=(folder / ".metadata").exists())


def thread() -> None:
    """A save of the user's own: it writes, then waits for the others."""
    future = Future[Any]()

    def save() -> None:
        hold()
        try:
            future.set_result(gather(100))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=save, daemon=True).start()
    left.append(future)


def pool() -> None:
    """A save in a pool of the module, whose thread works for the next iteration as well."""
    left.append(executor.submit(lambda: (hold(), gather(100))))


if __name__ == "__main__":
    Wrapper()(train)()
    record("done")
    os._exit(0)
