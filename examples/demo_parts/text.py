"""The training text: the sources of Python's standard library, which every machine has; a token is one byte.

A batch depends on the seed and the step, never on the number of ranks: each rank takes its share of the same batch.
So a run that lost ranks trains on the same samples in the same order as one that did not.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

__all__ = ["Batches", "load_text"]

MAX_BYTES = 2_000_000


def load_text() -> torch.Tensor:
    """The first two million bytes of the standard library's top-level modules, in alphabetical order."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    sources = b"\n".join(module.read_bytes() for module in modules)
    return torch.frombuffer(bytearray(sources[:MAX_BYTES]), dtype=torch.uint8)


class Batches:
    """The batches of a run: sequences from random places of the text.

    Args:
        text: the bytes to learn from.
        seed: says which places.
        sequences: how many a batch has, all ranks together.
        context: how many bytes a sequence has, apart from the one that is only predicted.
    """

    def __init__(self, text: torch.Tensor, *, seed: int, sequences: int = 24, context: int = 64) -> None:
        self.context = context
        self.tokens = sequences * context
        self._text, self._seed, self._sequences = text, seed, sequences

    def share(self, step: int, rank: int, world_size: int) -> torch.Tensor:
        """This rank's sequences of a step's batch, shape [sequences, context + 1]."""
        random = torch.Generator().manual_seed(self._seed << 32 | step)
        places = torch.randint(len(self._text) - self.context, (self._sequences,), generator=random)
        return torch.stack([self._text[start : start + self.context + 1] for start in places[rank::world_size]]).long()
