"""A training of which rank 1 loses its part and fails amid the transfer of a large one from rank 0."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nvrx_core import inprocess
from tests.harness.process.workers.record import Record

LARGE = 32 << 20
"""Numbers: more than the kernel takes, and more than is sent while the connections become quiet."""
STEPS = 4
record = Record.of_environment()
live = inprocess.LiveState()


class Model(torch.nn.Module):
    """A large parameter, which nothing trains, and a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.large = torch.nn.Parameter(torch.ones(LARGE), requires_grad=False)
        self.small = torch.nn.Parameter(torch.ones(3))


@inprocess.Wrapper(soft_timeout=timedelta(seconds=5), hard_timeout=timedelta(seconds=10))
def train(call_wrapper: inprocess.CallWrapper) -> None:
    dist.init_process_group("gloo")
    rank, iteration = dist.get_rank(), call_wrapper.iteration
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def advance() -> None:
        optimizer.step()
        if (rank, iteration) == (1, 0):
            raise RuntimeError("torn")

    receive = dist.irecv

    def fail_later(tensor: torch.Tensor, *args: Any) -> Any:
        if tensor.numel() != LARGE:
            raise RuntimeError("fails with the large tensor on its way")
        return receive(tensor, *args)

    if (rank, iteration) == (1, 1):
        dist.irecv = fail_later
    try:
        first = live.resume(model, optimizer, advance)
    finally:
        dist.irecv = receive
    if first is None:
        first = 0
        live.start(first)
    record("resumed", rank=rank, iteration=iteration, step=first)
    for step in range(first, STEPS):
        optimizer.zero_grad()
        model.small.sum().backward()
        live.commit(step)
    record("end", rank=rank, weights=model.small.tolist(), sum=float(model.large.double().sum()))
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
