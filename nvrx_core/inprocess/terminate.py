"""What runs when a rank leaves by an exception."""

from __future__ import annotations

from abc import ABC, abstractmethod

from nvrx_core.rank_assignment.base import FrozenState

__all__ = ["Terminate"]


class Terminate(ABC):
    """Runs on a rank that leaves, once the others know of it; what it raises replaces what the rank leaves by."""

    @abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Act on the leaving."""
