"""The training: plain PyTorch. It creates its group, builds its model, goes on from memory or a checkpoint, and steps.

`under_nvrx` calls it through the wrapper and keeps its state in memory, `under_torchrun` does neither; the training is
the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from demo_parts import checkpoints
from demo_parts.injection import Injection
from demo_parts.journal import Journal
from demo_parts.model import ByteTransformer, write_on
from demo_parts.settings import Settings
from demo_parts.text import Batches

__all__ = ["Call", "FromCheckpoints", "Live", "train"]

LEARNING_RATE = 8e-3
WARM_UP_STEPS = 20
SAMPLE_BYTES = 160


class Call(Protocol):
    """What the training uses of the wrapper's `CallWrapper`."""

    @property
    def iteration(self) -> int:
        """How often the training was restarted."""

    def atomic(self) -> AbstractContextManager[object]:
        """A context that no restart interrupts."""


class Live(Protocol):
    """What the training uses of `LiveState`."""

    def resume(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, advance: Callable[[], object]
    ) -> int | None:
        """Brings new objects to the newest step in memory; returns the next one, or None when there is none."""

    def start(self, step: int) -> None:
        """Begins with a step, from a checkpoint or fresh."""

    def commit(self, step: int) -> None:
        """Calls `advance`, and reports the step."""


class FromCheckpoints:
    """Stands where `LiveState` would, in a run that keeps nothing in memory.

    Args:
        report: is told of each completed step.
    """

    _advance: Callable[[], object]

    def __init__(self, report: Callable[[int], object]) -> None:
        self._report = report

    def resume(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, advance: Callable[[], object]) -> None:
        """There is nothing in memory."""
        self._advance = advance

    def start(self, step: int) -> None:
        """Nobody is told."""

    def commit(self, step: int) -> None:
        """Takes the step, and reports it."""
        self._advance()
        self._report(step)


def train(
    call_wrapper: Call, *, settings: Settings, batches: Batches, journal: Journal, injection: Injection, live: Live
) -> ByteTransformer:
    """Trains to the last step, from the newest one in memory on, or the last checkpoint; returns what has learned."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    iteration = call_wrapper.iteration
    torch.manual_seed(settings.seed)
    network = ByteTransformer(context=batches.context)
    optimizer = torch.optim.AdamW(network.parameters())
    first = live.resume(network, optimizer, optimizer.step)
    if first is None:
        first = checkpoints.resume(settings.checkpoints, network, optimizer)
        live.start(first)
    # Without the last flag DDP regroups the gradients after its first step; a restart would then change the last bits.
    model = DistributedDataParallel(network, init_sync=False, find_unused_parameters=True)
    for step in range(first, settings.steps):
        injection.inject(step, rank, call_wrapper)
        set_learning_rate(optimizer, step, settings.steps)
        loss = compute_gradients(model, optimizer, batches.share(step, rank, world_size), batches.tokens)
        live.commit(step)  # `optimizer.step()` on all ranks, or on none
        dist.all_reduce(loss)
        if step == first:
            journal.write("resumed", step=step, iteration=iteration, world_size=world_size)
        if rank == 0:
            journal.write("step", step=step, loss=loss.item(), iteration=iteration)
            if (step + 1) % settings.checkpoint_every == 0:
                with call_wrapper.atomic():
                    checkpoints.save(settings.checkpoints, step + 1, network, optimizer)
    if rank == 0:
        sample = write_on(network, "def ", SAMPLE_BYTES, seed=settings.seed)
        journal.write("trained", weights=digest(network), sample=sample, world_size=world_size)
    dist.destroy_process_group()
    return network


def set_learning_rate(optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    """Up in a few steps, and down to zero in all the others."""
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE * min(1, (step + 1) / WARM_UP_STEPS) * (1 - step / steps)


def compute_gradients(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor, tokens: int
) -> torch.Tensor:
    """Those of this rank's rows of a batch of `tokens` bytes; returns its part of the batch's loss, in nats a byte."""
    logits = model(rows[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum") / tokens
    optimizer.zero_grad()
    (loss * dist.get_world_size()).backward()  # the ranks' gradients are averaged; the batch's is their sum
    return loss.detach()


def digest(network: torch.nn.Module) -> str:
    """The SHA-256 of all weights: two networks have the same one if they are the same, bit for bit."""
    sha = hashlib.sha256()
    for weight in network.state_dict().values():
        sha.update(weight.contiguous().view(torch.uint8).numpy().data)
    return sha.hexdigest()
