"""One rank, protected by the wrapper: `python -m demo_parts.under_nvrx SETTINGS`.

A process beyond `settings.ranks` waits in reserve, and takes over the rank of one that is lost, with the state that the
others have in memory. When the reserve is used up, the training goes on with fewer ranks.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch

from demo_parts.injection import Injection
from demo_parts.journal import Journal
from demo_parts.model import ByteTransformer
from demo_parts.schedule import HARD_TIMEOUT, SOFT_TIMEOUT
from demo_parts.settings import Settings
from demo_parts.text import Batches, load_text
from demo_parts.train import train
from nvrx_core import inprocess
from nvrx_core.inprocess.rank_assignment import FillGaps, MaxActiveWorldSize

__all__ = ["main"]


def main() -> None:
    """One rank, from its start to the end of the training."""
    torch.set_num_threads(1)
    warm_up()
    settings = Settings.from_json(sys.argv[1])
    journal = Journal(settings.records, initial_rank=int(os.environ["RANK"]))
    batches = Batches(load_text(), seed=settings.seed)
    wrapper = inprocess.Wrapper(
        rank_assignment=inprocess.Compose(MaxActiveWorldSize(settings.ranks), FillGaps()),
        soft_timeout=timedelta(seconds=SOFT_TIMEOUT),
        hard_timeout=timedelta(seconds=HARD_TIMEOUT),
        no_progress_limit=3,
        events_dir=settings.records,
    )
    injection = Injection(settings, journal)
    live = inprocess.LiveState()
    wrapper(train)(settings=settings, batches=batches, journal=journal, injection=injection, live=live)
    journal.write("finished")


def warm_up() -> None:
    """Uses what torch prepares at first use, its compiler above all: it takes seconds, in which nothing is wrong."""
    torch.compiler.reset()
    network = ByteTransformer()
    network(torch.zeros(1, 8, dtype=torch.long)).sum().backward()
    torch.optim.AdamW(network.parameters()).step()


if __name__ == "__main__":
    main()
