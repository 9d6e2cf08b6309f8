"""What torch offers for training on many ranks, each feature used as its documentation has it.

The iterations go through the features: iteration `i` uses feature `i - 1` to its end and compares the outcome with a
training in one process; then it begins feature `i` and goes on with it until the fault.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nvrx_core.inprocess import CallWrapper, Wrapper
from nvrx_core.testing import inject
from tests.harness.process.workers.record import Record

FEATURES = "NVRX_TEST_FEATURES"
TARGET = 1
STEPS, ENDLESS = 4, 1_000_000


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    plan = json.loads(os.environ[FEATURES])
    tour = Tour(plan["features"], plan["fault"])
    settings = {name: timedelta(seconds=value) for name, value in plan["wrapper"].items()}
    Wrapper(no_progress_limit=None, **settings)(tour.function)()
    tour.record("done")


class Tour:
    """One rank's way through the features."""

    def __init__(self, features: list[str], fault: str) -> None:
        self.record, self.features, self.fault = Record.of_environment(), features, fault
        self.me = int(os.environ["RANK"])

    def function(self, call: CallWrapper) -> None:
        iteration, world_size = call.iteration, int(os.environ["WORLD_SIZE"])
        self.record("enter", iteration=iteration, world_size=world_size)
        dist.init_process_group("gloo")
        if iteration > 0:
            self.use(self.features[iteration - 1], STEPS)
            self.record("right", feature=self.features[iteration - 1], world_size=world_size)
        if iteration < len(self.features):
            self.use(self.features[iteration], ENDLESS)
        dist.destroy_process_group()

    def use(self, name: str, steps: int) -> None:
        _USES[name](self.step, steps)

    def step(self, number: int, steps: int) -> None:
        """Called before each step; a training without an end gets its fault before the third."""
        if steps == ENDLESS and number == 2 and self.me == TARGET:
            self.record("fault_injected", kind=self.fault)
            inject(self.fault)


Step = Callable[[int, int], None]
Build = Callable[[Any], tuple[Any, Any]]


def training(build: Build) -> Callable[[Step, int], None]:
    """A use of a feature that wraps a model: `build` gives the model and its optimizer."""

    def use(step: Step, steps: int) -> None:
        model, optimizer = build(plain())
        train(model, optimizer, steps, step)
        reference = plain()
        train(reference, sgd(reference), steps, lambda *_: None)
        for mine, right in zip(full(model), reference.parameters(), strict=True):
            torch.testing.assert_close(mine, right.detach(), rtol=1e-4, atol=1e-5)

    return use


def plain() -> Any:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8))


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model: Any, optimizer: Any, steps: int, step: Step) -> None:
    """The same data on all ranks, so that the average of their gradients is the gradient of one."""
    batch = torch.linspace(-1, 1, 32).reshape(4, 8)
    for number in range(steps):
        step(number, steps)
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()


def full(model: Any) -> list[Any]:
    """The parameters as a whole, wherever their parts are."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    whole = (
        FullyShardedDataParallel.summon_full_params(model) if hasattr(model, "_fsdp_wrapped_module") else nullcontext()
    )
    with whole:
        parameters = [parameter.detach().clone() for parameter in model.parameters()]
    return [each.full_tensor() if isinstance(each, DTensor) else each for each in parameters]


def mesh(*shape: int, names: tuple[str, ...] = ("data",)) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def ddp(model: Any) -> tuple[Any, Any]:
    model = torch.nn.parallel.DistributedDataParallel(model)
    return model, sgd(model)


def zero(model: Any) -> tuple[Any, Any]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = torch.nn.parallel.DistributedDataParallel(model)
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)


def fsdp1(model: Any) -> tuple[Any, Any]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    return model, sgd(model)


def fsdp2(model: Any) -> tuple[Any, Any]:
    return sharded(model, mesh(dist.get_world_size()))


def hsdp(model: Any) -> tuple[Any, Any]:
    size = dist.get_world_size()
    copies = 2 if size % 2 == 0 else 1
    return sharded(model, mesh(copies, size // copies, names=("copies", "shards")))


def sharded(model: Any, over: Any) -> tuple[Any, Any]:
    from torch.distributed.fsdp import fully_shard

    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=over)
    return model, sgd(model)


def tensor_parallel(model: Any) -> tuple[Any, Any]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(model, mesh(dist.get_world_size()), plan)
    return model, sgd(model)


def compiled(model: Any) -> tuple[Any, Any]:
    model, optimizer = ddp(model)
    model.module.forward = torch.compile(model.module.forward, backend="eager")
    return model, optimizer


def meshes(step: Step, steps: int) -> None:
    """Collectives along each dimension of a mesh, whose groups are made new in each iteration."""
    size = dist.get_world_size()
    rows = 2 if size % 2 == 0 else 1
    whole = mesh(rows, size // rows, names=("rows", "columns"))
    for number in range(steps):
        step(number, steps)
        for name, length in (("rows", rows), ("columns", size // rows)):
            ones = torch.ones(2)
            dist.all_reduce(ones, group=whole[name].get_group())
            assert ones.tolist() == [length] * 2


class Squares(torch.utils.data.Dataset[int]):
    """A data set."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return index * index


def loader(method: str) -> Callable[[Step, int], None]:
    """Batches of workers of one start method, and a collective for each batch."""

    def use(step: Step, steps: int) -> None:
        context = multiprocessing.get_context(method)
        batches = torch.utils.data.DataLoader(Squares(), 4, num_workers=1, multiprocessing_context=context)
        total = torch.zeros(1)
        for number, batch in enumerate(batches):
            step(number, steps)
            total += batch.sum()
            dist.barrier()
        dist.all_reduce(total)
        assert total.item() == dist.get_world_size() * sum(index * index for index in range(16))

    return use


_USES: dict[str, Callable[[Step, int], None]] = {
    "ddp": training(ddp),
    "zero": training(zero),
    "fsdp1": training(fsdp1),
    "fsdp2": training(fsdp2),
    "hsdp": training(hsdp),
    "tensor parallel": training(tensor_parallel),
    "compile": training(compiled),
    "mesh": meshes,
    "loader fork": loader("fork"),
    "loader spawn": loader("spawn"),
    "loader forkserver": loader("forkserver"),
}


if __name__ == "__main__":
    main()
