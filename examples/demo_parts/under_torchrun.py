"""One rank without the wrapper: `torchrun --max-restarts=N -m demo_parts.under_torchrun SETTINGS`.

After a fault torchrun ends all processes and starts new ones, which go on from the last checkpoint.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from demo_parts.injection import Injection
from demo_parts.journal import Journal
from demo_parts.settings import Settings
from demo_parts.text import Batches, load_text
from demo_parts.train import FromCheckpoints, train
from nvrx_core.process.lifeline import ParentDeathSignal

__all__ = ["Attempt", "main"]


class Attempt:
    """Stands where the wrapper's `CallWrapper` would.

    Attributes:
        iteration: how often torchrun has started this rank anew.
    """

    def __init__(self) -> None:
        self.iteration = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    def atomic(self) -> AbstractContextManager[object]:
        """Nothing interrupts this process but its end."""
        return nullcontext()


def main() -> None:
    """One rank, from its start to the end of the training."""
    ParentDeathSignal(os.getppid()).set()  # should torchrun itself be killed
    torch.set_num_threads(1)
    settings = Settings.from_json(sys.argv[1])
    journal = Journal(settings.records, initial_rank=int(os.environ["RANK"]))
    journal.write("started")
    batches = Batches(load_text(), seed=settings.seed)
    injection, live = Injection(settings, journal), FromCheckpoints(report=lambda step: None)
    train(Attempt(), settings=settings, batches=batches, journal=journal, injection=injection, live=live)
    journal.write("finished")


if __name__ == "__main__":
    main()
