"""Faults in ranks that are chosen at random; `inject_fault` has the name of that of nvidia-resiliency-ext."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Final

from nvrx_core.errors import require
from nvrx_core.settings import environment
from nvrx_core.testing.dispatch import Fault, dispatch_fault_injection

__all__ = ["NO_DEVICE", "choose", "inject_fault"]

NO_DEVICE: Final = tuple(fault for fault in Fault if not fault.name.startswith("GPU"))
"""The faults that need no CUDA device."""


def inject_fault(  # noqa: PLR0917 - code written against nvidia-resiliency-ext may give them by place
    faults: Sequence[Fault] | None = None,
    num_faults: int | tuple[int, int] = 1,
    keep_alive: int = 1,
    delay: float | tuple[float, float] = 0.0,
    seed: int | None = None,
    callback: Callable[[], object] | None = None,
) -> threading.Timer | None:
    """Inject faults into ranks that are chosen at random; all ranks of the default process group call it.

    Without a process group, the ranks are those of RANK and WORLD_SIZE, and need the same seed.

    Args:
        faults: the faults to choose from; default `NO_DEVICE`.
        num_faults: the number of ranks that get one, or its minimum and maximum; limited to the ranks that may get one.
        keep_alive: the number of ranks, from rank 0 on, that get none.
        delay: seconds until each fault, or their minimum and maximum.
        seed: the seed of the choice; by default, rank 0 draws one for all ranks of the process group.
        callback: called in each rank that gets a fault, a moment before it.

    Returns:
        In a rank that gets a fault the running timer, which can be cancelled, else None.

    Raises:
        ValueError: for a negative number, an empty range, no fault to choose from, no seed where several ranks have no
            process group, and as `dispatch_fault_injection`.
    """
    counts = num_faults if isinstance(num_faults, tuple) else (num_faults, num_faults)
    delays = delay if isinstance(delay, tuple) else (delay, delay)
    require(0 <= counts[0] <= counts[1], "num_faults", num_faults, "at least 0, or the least and the most")
    require(0 <= delays[0] <= delays[1], "delay", delay, "at least 0, or the shortest and the longest")
    require(keep_alive >= 0, "keep_alive", keep_alive, "at least 0")
    require(faults is None or bool(faults), "faults", faults, "at least one fault, or None for all")
    rank, world = _place()
    chosen = choose(random.Random(_agreed(seed, world)), range(world)[keep_alive:], counts, faults or NO_DEVICE)
    if rank not in chosen:
        return None
    fault, moment = chosen[rank]
    return dispatch_fault_injection(fault, delays[0] + moment * (delays[1] - delays[0]), callback)


def choose(
    rng: random.Random, ranks: Sequence[int], counts: tuple[int, int], faults: Sequence[Fault]
) -> dict[int, tuple[Fault, float]]:
    """Return the ranks that get a fault, each with its fault and a moment from 0 to 1."""
    count = min(rng.randint(*counts), len(ranks))
    return {rank: (rng.choice(faults), rng.random()) for rank in rng.sample(ranks, count)}


def _place() -> tuple[int, int]:
    """Return rank and size of the default process group; without one, those of the environment."""
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else environment.rank_and_world_size()


def _agreed(seed: int | None, world: int) -> int:
    """Return the seed that all ranks use."""
    import torch.distributed as dist

    if seed is not None:
        return seed
    drawn = [random.randrange(1 << 32)]
    if dist.is_initialized():
        dist.broadcast_object_list(drawn, src=0)
    else:
        require(world == 1, "seed", seed, "a number, the same on all ranks, before a process group is made")
    return drawn[0]
