"""The plug-in that runs at the start of every iteration, including the first."""

from __future__ import annotations

from abc import ABC, abstractmethod

from nvrx_core.errors import RestartAbort, require
from nvrx_core.rank_assignment.base import FrozenState

__all__ = ["Initialize", "RetryController"]


class Initialize(ABC):
    """A plug-in that prepares a rank for an iteration."""

    @abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Prepare.

        Raises:
            Exception: any exception, to restart all ranks.
            BaseException: any other exception, to let this rank exit.
        """


class RetryController(Initialize):
    """An initializer that ends the job after too many iterations, or when too few ranks are left.

    Args:
        max_iterations: the maximum number of iterations; None for no limit.
        min_world_size: the minimum number of living ranks.
        min_active_world_size: the minimum number of active ranks.

    Raises:
        ValueError: when a limit is negative.
    """

    def __init__(
        self, max_iterations: int | None = None, min_world_size: int = 1, min_active_world_size: int = 1
    ) -> None:
        rule = "at least 0, or None for no limit"
        require(max_iterations is None or max_iterations >= 0, "max_iterations", max_iterations, rule)
        require(min_world_size >= 0, "min_world_size", min_world_size, "at least 0")
        require(min_active_world_size >= 0, "min_active_world_size", min_active_world_size, "at least 0")
        self.max_iterations = max_iterations
        self.min_world_size = min_world_size
        self.min_active_world_size = min_active_world_size

    def __call__(self, state: FrozenState) -> FrozenState:
        """Check the limits.

        Raises:
            RestartAbort: when a limit is exceeded; the message contains the state's value and the limit.
        """
        reason = self._reason(state)
        if reason is not None:
            raise RestartAbort(reason)
        return state

    def _reason(self, state: FrozenState) -> str | None:
        active = state.world_size if state.active_world_size is None else state.active_world_size
        if state.world_size < self.min_world_size:
            return f"state.world_size={state.world_size} is below min_world_size={self.min_world_size}"
        if active < self.min_active_world_size:
            return f"state.active_world_size={active} is below min_active_world_size={self.min_active_world_size}"
        if self.max_iterations is not None and state.iteration >= self.max_iterations:
            return f"state.iteration={state.iteration} has reached max_iterations={self.max_iterations}"
        return None
