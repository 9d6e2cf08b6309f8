"""The plug-in that runs when the wrapped function has completed on all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod

from nvrx_core.rank_assignment.base import FrozenState

__all__ = ["Completion"]


class Completion(ABC):
    """A plug-in that runs on every rank after all ranks have completed; its exceptions are logged and ignored."""

    @abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Handle the completion."""
