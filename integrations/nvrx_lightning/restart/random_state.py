"""The states of the random number generators of this process.

Lightning does not save them and reseeds in each attempt, so dropout would differ from a run without the fault.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any, Self

import torch

__all__ = ["RandomState"]


@dataclass(frozen=True)
class RandomState:
    """The states of Python's, numpy's and torch's generators."""

    python: Any
    torch_cpu: torch.Tensor
    torch_cuda: tuple[torch.Tensor, ...] = ()
    numpy: Any = None

    @classmethod
    def now(cls) -> Self:
        """Return the current states."""
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else ()
        numpy = sys.modules.get("numpy")
        return cls(random.getstate(), torch.get_rng_state(), cuda, numpy and numpy.random.get_state())

    def restore(self) -> None:
        """Restore these states."""
        random.setstate(self.python)
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(list(self.torch_cuda))
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
