"""The training as a rank runs it: `python -m demo_parts.train SETTINGS`, with RANK and WORLD_SIZE in the environment.

`train` is plain PyTorch: it creates its group, builds its model, goes on from the last checkpoint and takes steps.
What makes it survive is the `Wrapper` around it, in `main`; what breaks it is `Strikes`, at the start of a step.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from demo_parts import checkpoints
from demo_parts.journal import Journal
from demo_parts.model import ByteTransformer, write_on
from demo_parts.settings import Settings
from demo_parts.text import Batches, load_text
from nvrx_core import inprocess
from nvrx_core.testing import faults

__all__ = ["Strikes", "main", "train"]

LEARNING_RATE = 8e-3
WARM_UP_STEPS = 20


class Strikes:
    """The faults of this rank: each strikes once, however often its step is repeated."""

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self._pending = [fault for fault in settings.faults if fault.initial_rank == journal.initial_rank]
        self._journal = journal

    def inject(self, step: int, call: inprocess.CallWrapper) -> None:
        """Breaks this process if a fault is due at `step`; the journal knows of it a moment before."""
        if self._pending and self._pending[0].step == step:
            kind = self._pending.pop(0).kind
            self._journal.write("struck", kind=kind, step=step, iteration=call.iteration)
            faults.inject(kind, stamp=lambda moment: None, call=call)


def train(
    settings: Settings, batches: Batches, *, journal: Journal, strikes: Strikes, call: inprocess.CallWrapper
) -> ByteTransformer:
    """Trains to the last step, from the last checkpoint on; returns what has learned."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(settings.seed)
    network = ByteTransformer(context=batches.context)
    optimizer = torch.optim.AdamW(network.parameters())
    first = checkpoints.resume(settings.checkpoints, network, optimizer)
    model = DistributedDataParallel(network)
    for step in range(first, settings.steps):
        strikes.inject(step, call)
        set_learning_rate(optimizer, step, settings.steps)
        loss = take_step(model, optimizer, batches.share(step, rank, world_size), batches.tokens)
        call.progress(step)
        if rank == 0:
            journal.write("step", step=step, loss=loss, iteration=call.iteration)
            if (step + 1) % settings.checkpoint_every == 0:
                with call.atomic():
                    checkpoints.save(settings.checkpoints, step + 1, network, optimizer)
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


def warm_up() -> None:
    """Uses what torch prepares at first use, its compiler above all: it takes seconds, in which nothing is wrong."""
    torch.compiler.reset()
    network = ByteTransformer()
    network(torch.zeros(1, 8, dtype=torch.long)).sum().backward()
    torch.optim.AdamW(network.parameters()).step()


def main() -> None:
    """One rank, from its start to the end of the training."""
    torch.set_num_threads(1)
    warm_up()
    settings = Settings.from_json(sys.argv[1])
    journal = Journal(settings.records, initial_rank=int(os.environ["RANK"]))
    wrapper = inprocess.Wrapper(
        soft_timeout=timedelta(seconds=2),
        hard_timeout=timedelta(seconds=4),
        no_progress_limit=3,
        events_dir=settings.records,
    )
    batches = Batches(load_text(), seed=settings.seed)
    network = wrapper(train)(settings, batches, journal=journal, strikes=Strikes(settings, journal))
    journal.write("finished", sample=write_on(network, "def ", 200, seed=settings.seed))


if __name__ == "__main__":
    main()
