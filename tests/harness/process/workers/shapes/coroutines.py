"""asyncio, which stores what its tasks raise."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

from tests.harness.process.workers.shapes.shape import Shape, work

__all__ = ["SHAPES"]


class Coroutines(Shape):
    """What the shapes with an event loop have in common."""

    def run(self, call: Any) -> None:
        asyncio.run(self.main())

    def main(self) -> Coroutine[Any, Any, None]:
        raise NotImplementedError

    async def step(self) -> None:
        self.entered += 1
        try:
            work()
            await asyncio.sleep(0.0005)
            work()
        finally:
            self.cleaned += 1

    def check(self) -> None:
        gc.collect()  # a loop and its tasks refer to each other
        super().check()


class Tasks(Coroutines):
    """Tasks that are awaited one after the other."""

    async def main(self) -> None:
        for task in [asyncio.create_task(self.step()) for _ in range(3)]:
            await task


class TaskGroup(Coroutines):
    """A group of tasks, which raises a group of exceptions."""

    async def main(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(self.step())


class Gathered(Coroutines):
    """`gather`, with a cleanup that awaits."""

    async def main(self) -> None:
        await asyncio.gather(*(self.tidy_step() for _ in range(3)))

    async def tidy_step(self) -> None:
        try:
            await self.step()
        finally:
            await asyncio.sleep(0)


class Executor(Coroutines):
    """Blocking work in the loop's threads."""

    async def main(self) -> None:
        await self.step()
        assert await asyncio.to_thread(work) == work()


SHAPES = (Tasks, TaskGroup, Gathered, Executor)
