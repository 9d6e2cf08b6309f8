"""Whether restarts lead anywhere, by the iteration of the last checkpoint: a job that repeats itself is given up. Pure.

The nodes say the iteration when they have stopped; the highest one counts. A restart is fruitless unless the iteration
is `min_iterations` higher than when it last was: what several cycles have done together counts as well. A cycle whose
iteration nobody can read is neither fruitless nor does it end a series of fruitless ones, and so is one that has lost a
node or its control store, for the same reason for which it uses up no restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from nvrx_core.parsing import integer

__all__ = ["CheckpointProgress", "ProgressRules", "ProgressState"]


@dataclass(frozen=True)
class ProgressRules:
    """When restarts have been fruitless for too long.

    Attributes:
        max_fruitless: the number of fruitless restarts in a row after which the job ends; 0 or less: never.
        min_iterations: how many iterations are progress.
    """

    max_fruitless: int = 0
    min_iterations: int = 1


@dataclass(frozen=True)
class ProgressState:
    """The state of a job's progress.

    Attributes:
        iteration: the iteration of the last progress; -1 while none is known.
        fruitless: the number of fruitless restarts in a row.
    """

    iteration: int = -1
    fruitless: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the wire format."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Parse the wire format.

        Raises:
            ValueError: when it is malformed.
        """
        return cls(integer(data.get("iteration", -1), -1), integer(data.get("fruitless", 0), 0))


class CheckpointProgress:
    """The progress of a job.

    Args:
        rules: when it is given up.
        state: what another one knew.

    Attributes:
        state: everything that later decisions depend on.
    """

    def __init__(self, rules: ProgressRules, state: ProgressState | None = None) -> None:
        self._rules, self.state = rules, state or ProgressState()

    def cycle_begins(self, iterations: Iterable[int]) -> None:
        """Record what the nodes of a cycle say; the first iteration of all is where the job begins."""
        if self.state.iteration < 0:
            self.state = ProgressState(max(iterations, default=-1), self.state.fruitless)

    def cycle_ended(self, iterations: Iterable[int], *, is_restart: bool) -> str:
        """Record what the nodes of a cycle say that have stopped; return why the job is given up, "" if it is not.

        Args:
            iterations: of each node; -1 where it cannot be read.
            is_restart: a failure of a worker has stopped the cycle, and is not forgiven.
        """
        found, last = max(iterations, default=-1), self.state.iteration
        if found < 0:
            return ""
        if last < 0 or found - last >= self._rules.min_iterations:
            self.state = ProgressState(found)
        elif is_restart:
            self.state = ProgressState(last, self.state.fruitless + 1)
        if not 0 < self._rules.max_fruitless <= self.state.fruitless:
            return ""
        plural = "" if self.state.fruitless == 1 else "s in a row"
        return (
            f"{self.state.fruitless} cycle{plural} without progress: the last checkpoint is of iteration {found}, and "
            f"was of {last} before; {self._rules.min_iterations} more would be progress"
        )
