"""`init_process_group` itself, and what is used of it at once."""

from __future__ import annotations

from typing import Any

from tests.harness.process.workers.shapes.shape import Shape

__all__ = ["SHAPES"]


class GroupOfOne(Shape):
    """A group for a rank alone, made, used and destroyed."""

    def run(self, call: Any) -> None:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        ones = torch.ones(2)
        dist.all_reduce(ones)
        assert ones.tolist() == [1, 1]
        dist.destroy_process_group()


class GroupOfTwo(Shape):
    """A group of two ranks; both are interrupted, each where it happens to be."""

    targets, rehearsed, span = 2, False, 0.06

    def run(self, call: Any) -> None:
        import torch
        import torch.distributed as dist

        store = call.iteration_store()
        dist.init_process_group("gloo", store=store, rank=call.state.initial_rank, world_size=2)
        halves = dist.new_group([0, 1])
        for group in (None, halves):
            ones = torch.ones(2)
            dist.all_reduce(ones, group=group)
            assert ones.tolist() == [2, 2]
        dist.destroy_process_group()


SHAPES = (GroupOfOne, GroupOfTwo)
