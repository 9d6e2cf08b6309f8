"""The state of a rank for the wrapper and its plug-ins: the pure state, with RANK and WORLD_SIZE of the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from nvrx_core.rank_assignment.base import AssignmentState, FrozenState, Mode
from nvrx_core.settings.environment import rank_and_world_size, set_ranks

__all__ = ["FrozenState", "Mode", "State"]


@dataclass
class State(AssignmentState):
    """The state of this rank; its fields are those of `FrozenState`."""

    @classmethod
    def from_env(cls) -> Self:
        """Return the state on entry, from RANK and WORLD_SIZE; rank 0 of 1 when neither is set.

        Raises:
            ValueError: when one is missing, not a number, or out of range.
        """
        rank, world_size = rank_and_world_size()
        return cls(rank=rank, world_size=world_size)

    def set_distributed_vars(self) -> None:
        """Set RANK and WORLD_SIZE to the active rank and world size; unset both on a reserve rank."""
        active = self.active_rank is not None
        set_ranks(self.active_rank, self.active_world_size if active else None)
