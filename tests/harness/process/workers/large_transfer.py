"""A training of which rank 1 loses its part and fails amid the transfer of a large one from rank 0.

`NVRX_TEST_LARGE=objects`: amid that of a shared object of 64 MB.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nvrx_core import inprocess
from tests.harness.process.workers.record import Record

LARGE = 32 << 20
"""Numbers: more than the kernel takes, and more than is sent while the connections become quiet."""
STEPS = 4
AMID = torch.uint8 if os.environ.get("NVRX_TEST_LARGE") == "objects" else torch.float32
"""Of what is received when rank 1 fails."""
record = Record.of_environment()
live = inprocess.LiveState()


class Table:
    """A large shared object, of a megabyte a number: it is sent as Python objects."""

    def __init__(self) -> None:
        self.rows = [bytes(1 << 20) for _ in range(64 if AMID is torch.uint8 else 1)]

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"]


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
    model, table = Model(), Table()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def advance() -> None:
        optimizer.step()
        if (rank, iteration) == (1, 0):
            raise RuntimeError("torn")

    receive, received = dist.irecv, Counter[torch.dtype]()

    def fail_later(tensor: torch.Tensor, *args: Any) -> Any:
        received[tensor.dtype] += 1
        if received[AMID] > 1:
            raise RuntimeError("fails with a large tensor on its way")
        return receive(tensor, *args)

    if (rank, iteration) == (1, 1):
        dist.irecv = fail_later
    try:
        first = live.resume(model, optimizer, advance, shared={"table": table})
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
