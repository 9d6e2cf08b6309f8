"""What runs when the wrapped function is completed on all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod

from nvrx_core.rank_assignment.base import FrozenState

__all__ = ["Completion"]


class Completion(ABC):
    """Runs on every rank after all have completed; what it raises is logged and goes no further."""

    @abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Act on the completion."""
