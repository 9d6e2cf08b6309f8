"""Calls in which a rank waits for a peer that does not come, each by its name in a `Case`."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

__all__ = ["KEPT_GRAPHS", "WAITS"]

ELEMENTS = 1 << 20
KERNEL_CYCLES = 1 << 31  # about a second
ENDLESS_CYCLES = 1 << 50
KEPT_GRAPHS: Final[list[torch.cuda.CUDAGraph]] = []


def _reduced(group: Any = None) -> torch.Tensor:
    value = torch.ones(ELEMENTS, device="cuda")
    dist.all_reduce(value, group=group)
    return value


def _synchronize() -> None:
    _reduced()
    torch.cuda.synchronize()


def _item() -> None:
    _reduced().sum().item()


def _copy() -> None:
    torch.empty(ELEMENTS, pin_memory=True).copy_(_reduced())


def _event() -> None:
    _reduced()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


def _busy() -> None:
    _reduced()
    while True:
        sum(range(1000))


def _sleep() -> None:
    _reduced()
    time.sleep(3600)  # noqa: TID251 - a hang is what is wanted here


def _receive() -> None:
    value = torch.ones(ELEMENTS, device="cuda")
    dist.recv(value, src=(dist.get_rank() + 1) % dist.get_world_size())
    torch.cuda.synchronize()


def _batched() -> None:
    here, there = torch.ones(ELEMENTS, device="cuda"), torch.ones(ELEMENTS, device="cuda")
    world_size, rank = dist.get_world_size(), dist.get_rank()
    for work in dist.batch_isend_irecv([
        dist.P2POp(dist.isend, here, (rank + 1) % world_size),
        dist.P2POp(dist.irecv, there, (rank - 1) % world_size),
    ]):  # fmt: skip
        work.wait()
    torch.cuda.synchronize()


def _subgroups() -> None:
    groups = [dist.new_group() for _ in range(4)]
    for group in groups:
        _reduced(group)
    torch.cuda.synchronize()


def _barrier() -> None:
    dist.barrier()


def _gloo() -> None:
    _reduced()
    dist.all_reduce(torch.ones(ELEMENTS))


def _object() -> None:
    dist.broadcast_object_list([None], src=1)


def _ddp(steps: Iterable[int] = itertools.count()) -> None:
    _train(torch.nn.parallel.DistributedDataParallel(_layers()), steps)


def _fsdp2(steps: Iterable[int] = itertools.count()) -> None:
    model = _layers()
    for each in (*model, model):
        fully_shard(each)
    _train(model, steps)


def _layers() -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, device="cuda") for _ in range(8)))


def _train(model: torch.nn.Module, steps: Iterable[int]) -> None:
    """A training with Adam."""
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps:
        loss = model(torch.ones(8, 2048, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


class _InBackward(torch.autograd.Function):
    """A backward pass in Python, which autograd runs in its thread of the device."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, call: Callable[[], None]) -> torch.Tensor:
        context.call = call
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.call()
        return gradient, None


def _backward(call: Callable[[], None] = _item) -> None:
    _InBackward.apply(torch.ones(8, device="cuda", requires_grad=True), call).sum().backward()


def _batched_backward() -> None:
    _backward(_batched)


def _many_groups() -> None:
    """Groups are made and used without an end; the target is not in one of them."""
    for _ in range(20):
        _reduced(dist.new_group([0, 2], use_local_synchronization=True))
    _item()


def _captured() -> torch.cuda.CUDAGraph:
    """A graph of one collective."""
    graph, value = torch.cuda.CUDAGraph(), torch.ones(ELEMENTS, device="cuda")
    with torch.cuda.graph(graph):
        dist.all_reduce(value)
    return graph


def _graph() -> None:
    """A replay of a captured collective."""
    graph = _captured()
    graph.replay()
    torch.cuda.synchronize()


def _kept_graph() -> None:
    """The same, of a graph that outlives the function."""
    KEPT_GRAPHS.append(_captured())
    KEPT_GRAPHS[-1].replay()
    torch.cuda.synchronize()


def _capture() -> None:
    """The others are inside a capture when the fault comes."""
    graph, value = torch.cuda.CUDAGraph(), torch.ones(ELEMENTS, device="cuda")
    with torch.cuda.graph(graph):
        dist.all_reduce(value)
        while True:
            sum(range(1000))


def _kernel() -> None:
    torch.cuda._sleep(KERNEL_CYCLES)
    _item()


def _endless() -> None:
    torch.cuda._sleep(ENDLESS_CYCLES)


WAITS: Final[dict[str, Callable[[], object]]] = {
    "synchronize": _synchronize,
    "item": _item,
    "copy": _copy,
    "event": _event,
    "busy": _busy,
    "sleep": _sleep,
    "receive": _receive,
    "batched": _batched,
    "subgroups": _subgroups,
    "barrier": _barrier,
    "gloo": _gloo,
    "object": _object,
    "ddp": _ddp,
    "three steps of ddp": functools.partial(_ddp, range(3)),
    "fsdp2": _fsdp2,
    "three steps of fsdp2": functools.partial(_fsdp2, range(3)),
    "backward": _backward,
    "batched_backward": _batched_backward,
    "many_groups": _many_groups,
    "graph": _graph,
    "kept_graph": _kept_graph,
    "capture": _capture,
    "kernel": _kernel,
    "endless": _endless,
    "creation": _synchronize,  # of a communicator that no collective has made before
    "first_batch": _batched,
}
