"""What a main thread does between two faults, beside waiting: it holds the interpreter, as training code does.

Standard library and torch only: the same code runs under either implementation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import torch

__all__ = ["BUSY", "in_asyncio"]

STEP = 0.005
TASK = 0.003
SMALL = 64


def spin(seconds: float) -> None:
    """Runs Python bytecode for so long."""
    end, turns = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        turns += 1


def operate(seconds: float) -> None:
    """Runs small torch operations one after the other for so long."""
    end, tensor = time.monotonic() + seconds, torch.ones(SMALL)
    while time.monotonic() < end:
        tensor = torch.relu(tensor * 1.0001 + 1e-3)


BUSY: dict[str, Callable[[], None]] = {
    "loop": lambda: spin(STEP),
    "operations": lambda: operate(STEP),
}
"""What one step does, by the name that `Job.busy` gives."""


def in_asyncio(step: Callable[[], bool]) -> None:
    """Runs `step` until it says False, beside tasks that hold the event loop for 3 ms each."""

    async def task() -> None:
        spin(TASK)

    async def steps() -> None:
        while step():
            await asyncio.gather(task(), task())

    asyncio.run(steps())
