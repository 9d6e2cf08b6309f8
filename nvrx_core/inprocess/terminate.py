"""The plug-in that runs when a rank exits with an exception."""

from __future__ import annotations

from abc import ABC, abstractmethod

from nvrx_core.rank_assignment.base import FrozenState

__all__ = ["Terminate"]


class Terminate(ABC):
    """A plug-in that runs on an exiting rank, after it notified its peers; its exception replaces the rank's."""

    @abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Handle the exit."""
