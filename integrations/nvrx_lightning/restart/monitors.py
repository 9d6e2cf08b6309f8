"""What follows a metric on this rank: schedules (`ReduceLROnPlateau`), early stopping, the best models.

A metric that is logged without `sync_dist=True` is each rank's own, and so is what follows it. A checkpoint has that of
rank 0.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from nvrx_lightning.families import family_of, lookup

__all__ = ["Monitors"]

_STOPPING: Final = "callbacks.EarlyStopping"
_SAVING: Final = "callbacks.ModelCheckpoint"


@dataclass(frozen=True)
class Monitors:
    """The state of what follows a metric.

    Attributes:
        schedules: the states of the schedulers that depend on a metric.
        rates: the learning rates of each optimizer, if there is such a scheduler.
        stopping: the states of early stopping, by callback.
        saving: the states of the checkpoint callbacks, by callback.
    """

    schedules: list[dict[str, Any]]
    rates: list[list[Any]]
    stopping: dict[str, Any]
    saving: dict[str, Any]

    @classmethod
    def now(cls, trainer: Any) -> Self:
        """Return the current state."""
        schedules = [each.state_dict() for each in _plateaus(trainer)]
        rates = [[group["lr"] for group in each.param_groups] for each in trainer.optimizers] if schedules else []
        stopping = {each.state_key: each.state_dict() for each in _of(trainer, _STOPPING)}
        saving = {each.state_key: each.state_dict() for each in _of(trainer, _SAVING)}
        return copy.deepcopy(cls(schedules, rates, stopping, saving))

    def before_a_save(self) -> Self:
        """Return the state of a rank that has not come to the save of its peers: it does not know their files."""
        return replace(self, saving={})

    def restore(self, trainer: Any) -> tuple[float, float] | None:
        """Restore the state.

        Returns:
            The learning rates of this rank and of the checkpoint, if they differ.
        """
        for scheduler, state in zip(_plateaus(trainer), self.schedules, strict=False):
            scheduler.load_state_dict(copy.deepcopy(state))
        states = {**self.stopping, **self.saving}
        for callback in (*_of(trainer, _STOPPING), *_of(trainer, _SAVING)):
            if callback.state_key in states:
                callback.load_state_dict(copy.deepcopy(states[callback.state_key]))
        found = None
        for optimizer, rates in zip(trainer.optimizers, self.rates, strict=False):
            for group, rate in zip(optimizer.param_groups, rates, strict=False):
                if found is None and group["lr"] != rate:
                    found = float(rate), float(group["lr"])
                group["lr"] = copy.deepcopy(rate)
        return found


def _plateaus(trainer: Any) -> Iterator[Any]:
    return (config.scheduler for config in trainer.lr_scheduler_configs if config.reduce_on_plateau)


def _of(trainer: Any, kind: str) -> Iterator[Any]:
    followed = lookup(family_of(type(trainer)), kind)
    return (each for each in trainer.callbacks if isinstance(each, followed))
