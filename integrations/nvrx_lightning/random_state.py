"""Random numbers go on where a checkpoint was saved: each rank keeps its own states in memory, one for each checkpoint.

Lightning saves none, and seeds again in each attempt, so that dropout would differ from the run without the fault. The
states are those of the process: a job that was started again has none.
"""

from __future__ import annotations

import logging
import random
import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, Self

import torch

__all__ = ["RandomState", "RandomStates"]

log = logging.getLogger("nvrx_lightning")
KEPT: Final = 16
"""Checkpoints whose states are kept."""


@dataclass(frozen=True)
class RandomState:
    """The states of Python's, numpy's and torch's generators."""

    python: Any
    torch_cpu: torch.Tensor
    torch_cuda: tuple[torch.Tensor, ...] = ()
    numpy: Any = None

    @classmethod
    def now(cls) -> Self:
        """Return the states of this moment."""
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else ()
        numpy = sys.modules.get("numpy")
        return cls(random.getstate(), torch.get_rng_state(), cuda, numpy and numpy.random.get_state())

    def restore(self) -> None:
        """Continue from these states."""
        random.setstate(self.python)
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(list(self.torch_cuda))
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


class RandomStates:
    """The states at the checkpoints of a fit."""

    def __init__(self) -> None:
        self._states: OrderedDict[str, RandomState] = OrderedDict()
        self._last, self._number = (-1, -1), 0
        self._warned = False

    def keep(self, attempt: int, step: int) -> str:
        """Keep the present states for a checkpoint.

        Returns:
            Its token, the same on each rank: also after a save in which only some of them have failed.
        """
        self._number = self._number + 1 if self._last == (attempt, step) else 0
        self._last = attempt, step
        token = f"{attempt}-{step}-{self._number}"
        self._states[token] = RandomState.now()
        while len(self._states) > KEPT:
            self._states.popitem(last=False)
        return token

    def of(self, token: str | None, *, expected: bool) -> RandomState | None:
        """Return the states of a checkpoint, None for one that this process has not seen saved.

        Args:
            token: of the checkpoint.
            expected: this fit has saved it; that there are no states is told, once.
        """
        found = self._states.get(token) if token is not None else None
        if found is None and expected and not self._warned:
            self._warned = True
            log.warning(
                "this rank has no random states for the checkpoint: a fault occurred while the checkpoint was saved, "
                "or it has not seen it saved. Its random numbers begin anew, so that dropout differs from a run "
                "without the fault",
            )  # fmt: skip
        return found
