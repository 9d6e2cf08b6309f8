"""The training: plain PyTorch. It creates its group, builds its model, goes on from the last checkpoint, takes steps.

`under_nvrx` calls it through the wrapper, `under_torchrun` without; the training is the same.
"""

from __future__ import annotations

import hashlib
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

__all__ = ["Call", "train"]

LEARNING_RATE = 8e-3
WARM_UP_STEPS = 20
SAMPLE_BYTES = 160


class Call(Protocol):
    """What the training uses of the wrapper's `CallWrapper`."""

    @property
    def iteration(self) -> int:
        """How often the training was restarted."""

    def progress(self, step: int) -> None:
        """Reports a completed step."""

    def atomic(self) -> AbstractContextManager[object]:
        """A context that no restart interrupts."""


def train(
    call_wrapper: Call, *, settings: Settings, batches: Batches, journal: Journal, injection: Injection
) -> ByteTransformer:
    """Trains to the last step, from the last checkpoint on; returns what has learned."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    iteration = call_wrapper.iteration
    torch.manual_seed(settings.seed)
    network = ByteTransformer(context=batches.context)
    optimizer = torch.optim.AdamW(network.parameters())
    first = checkpoints.resume(settings.checkpoints, network, optimizer)
    # Without the flag DDP regroups the gradients after its first step; a restart would then change the last bits.
    model = DistributedDataParallel(network, find_unused_parameters=True)
    for step in range(first, settings.steps):
        injection.inject(step, rank, call_wrapper)
        set_learning_rate(optimizer, step, settings.steps)
        loss = take_step(model, optimizer, batches.share(step, rank, world_size), batches.tokens)
        call_wrapper.progress(step)
        if step == first:
            journal.write("resumed", step=step, iteration=iteration, world_size=world_size)
        if rank == 0:
            journal.write("step", step=step, loss=loss, iteration=iteration)
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


def take_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor, tokens: int) -> float:
    """One step on this rank's rows of a batch of `tokens` bytes; returns the loss of the batch, in nats a byte."""
    logits = model(rows[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum") / tokens
    optimizer.zero_grad()
    (loss * dist.get_world_size()).backward()  # the ranks' gradients are averaged; the batch's is their sum
    optimizer.step()
    total = loss.detach()
    dist.all_reduce(total)
    return total.item()


def digest(network: torch.nn.Module) -> str:
    """The SHA-256 of all weights: two networks have the same one if they are the same, bit for bit."""
    sha = hashlib.sha256()
    for weight in network.state_dict().values():
        sha.update(weight.contiguous().view(torch.uint8).numpy().data)
    return sha.hexdigest()
