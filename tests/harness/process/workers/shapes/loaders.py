"""torch's DataLoader, without workers and with workers of every start method."""

from __future__ import annotations

import multiprocessing
from typing import Any

from tests.harness.process.workers.shapes.shape import Shape, assert_no_children, work

__all__ = ["SHAPES"]


class Squares:
    """A data set."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        work()
        return index * index


class LoaderAlone(Shape):
    """Batches that the main thread makes."""

    workers, method = 0, ""

    def run(self, call: Any) -> None:
        from torch.utils.data import DataLoader

        more = {"multiprocessing_context": multiprocessing.get_context(self.method)} if self.method else {}
        loader: Any = DataLoader(Squares(), batch_size=4, num_workers=self.workers, **more)  # type: ignore[arg-type]
        assert sum(int(batch.sum()) for batch in loader) == sum(index * index for index in range(16))

    def check(self) -> None:
        multiprocessing.active_children()
        assert_no_children()


class LoaderFork(LoaderAlone):
    """Batches of forked workers."""

    workers, method, span, every = 2, "fork", 0.15, 3


class LoaderSpawn(LoaderAlone):
    """Batches of a worker that is a fresh interpreter."""

    workers, method, span, every, rehearsed = 1, "spawn", 2.0, 20, False


class LoaderForkServer(LoaderSpawn):
    """Batches of a worker that a server forks."""

    method = "forkserver"


SHAPES = (LoaderAlone, LoaderFork, LoaderSpawn, LoaderForkServer)
