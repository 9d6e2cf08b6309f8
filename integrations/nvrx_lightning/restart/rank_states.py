"""The state that each rank keeps in memory for each checkpoint: random state, running metrics and what follows them.

It differs between ranks, and a checkpoint has only that of one rank. A restarted job has none.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from nvrx_lightning.restart.monitors import Monitors
from nvrx_lightning.restart.random_state import RandomState
from nvrx_lightning.restart.running_metrics import RunningMetrics

__all__ = ["RankState", "RankStates"]

log = logging.getLogger("nvrx_lightning")
KEPT: Final = 16
"""Number of checkpoints whose states are kept."""


@dataclass(frozen=True)
class RankState:
    """The state of a rank at a checkpoint."""

    random: RandomState
    metrics: RunningMetrics
    monitors: Monitors

    @classmethod
    def now(cls, trainer: Any) -> Self:
        """Return the current state."""
        return cls(RandomState.now(), RunningMetrics.now(trainer), Monitors.now(trainer))

    def after(self, before: Self) -> Self:
        """Return this state, taken in a validation that began at another one, as the training will find it."""
        return replace(self, metrics=self.metrics.after(before.metrics))

    def before_a_save(self) -> Self:
        """Return this state of a rank that has not come to the save of its peers."""
        return replace(self, monitors=self.monitors.before_a_save())


class RankStates:
    """The states at the checkpoints of a fit."""

    def __init__(self) -> None:
        self._states: OrderedDict[str, RankState] = OrderedDict()
        self._last, self._number = (-1, -1), 0
        self._interrupted: tuple[str, RankState] | None = None
        self._warned = False

    def keep(self, attempt: int, step: int, state: RankState) -> str:
        """Keep the current state for a checkpoint.

        Returns:
            Its token, the same on each rank, even after a save that failed on some ranks.
        """
        self._number = self._number + 1 if self._last == (attempt, step) else 0
        self._last = attempt, step
        token = f"{attempt}-{step}-{self._number}"
        self._states[token] = state
        while len(self._states) > KEPT:
            self._states.popitem(last=False)
        return token

    def retain(self, tokens: Collection[str]) -> None:
        """Drop the states of other checkpoints: they are removed, and a state may be large."""
        for token in [each for each in self._states if each not in tokens]:
            del self._states[token]

    def interrupted(self, attempt: int, step: int, state: RankState) -> None:
        """Keep the state of a rank that a fault interrupted after its batch: its peers may have saved this step."""
        self._interrupted = f"{attempt}-{step}", state

    def of(self, token: str | None, *, expected: bool) -> RankState | None:
        """Return the state at a checkpoint; None for one at whose save this process did not take part.

        Args:
            token: the token of the checkpoint.
            expected: this fit has saved the checkpoint; a missing state is logged, once.
        """
        if token is None:
            return None
        if token in self._states:
            return self._states[token]
        if self._interrupted is not None and token.rpartition("-")[0] == self._interrupted[0]:
            return self._interrupted[1]
        if expected and not self._warned:
            self._warned = True
            log.warning(
                "this rank has no random states for the checkpoint: it has not seen it saved. Its random numbers begin "
                "anew, so that dropout differs from a run without the fault; metrics of the epoch begin there, too",
            )  # fmt: skip
        return None
