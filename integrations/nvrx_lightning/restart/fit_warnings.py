"""What a fit warns of, once: what a restart from its checkpoints will repeat, leave out, or find different."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import torch.distributed as dist

from nvrx_lightning.restart.save_point import SavePoint
from nvrx_lightning.restart.snapshot import overrides

__all__ = ["FitWarnings"]

log = logging.getLogger("nvrx_lightning")
SAVED_IN_BATCH: Final = (
    "a checkpoint was saved in the middle of a batch (in %s): a restart from it repeats the batch, with other random "
    "numbers, and with what the batch has logged and counted (BatchNorm, metrics) a second time. Save it in "
    "on_train_batch_end"
)
LEFT_OUT: Final = (
    "a checkpoint was saved in on_train_batch_end: a restart from it leaves out what %s.on_train_batch_end does after "
    "the save. What must not be left out, such as an average of weights, belongs into a callback, before the one that "
    "saves, or into on_train_batch_start"
)
THAWED: Final = (
    "%s%s was frozen when DistributedDataParallel was set up, and is trained now: it does not average these "
    "gradients, so that the weights differ between ranks, without a fault, too. A restart gives all ranks those of "
    "rank 0, and the training differs from there. Instead of freezing a layer at first, give it a parameter group with "
    "a learning rate of 0"
)
OWN_RATE: Final = (
    "the learning rate of this rank is %g, and that of rank 0, which has saved the checkpoint, %g: their schedules "
    "follow a metric that each rank has on its own, so that the weights differ between ranks, without a fault, too. A "
    "restart gives all ranks those of rank 0. Log the metric with sync_dist=True"
)
LEFTOVERS: Final = (
    "%s: the restart takes back steps, and what they have put there stays, so that results may differ from a run "
    "without the fault. Use self.log(..., on_epoch=True) or a metric of torchmetrics, which go back with the step, or "
    "restore the container in on_load_checkpoint (callbacks: load_state_dict)"
)
_RATES: Final = "learning rates"


class FitWarnings:
    """The warnings of one fit, over its attempts.

    Attributes:
        unsynchronized: the layers that were frozen when DDP was set up in this attempt.
    """

    def __init__(self, trainer: Any, family: str) -> None:
        self._trainer, self._family = trainer, family
        self.unsynchronized: list[str] = []
        self._has_told_save = self._has_told_thawed = self._has_told_rates = False

    def saved(self, point: SavePoint, frozen: set[str]) -> None:
        """Warn of a save from which a restart repeats a part of the batch or leaves one out, and of unfrozen layers.

        Args:
            point: where in the loops the checkpoint was saved.
            frozen: the layers that are frozen now.
        """
        thawed = [name for name in self.unsynchronized if name not in frozen]
        if thawed and not self._has_told_thawed:
            self._has_told_thawed = True
            log.warning(THAWED, thawed[0], f" (and {len(thawed) - 1} more)" if len(thawed) > 1 else "")
        if self._has_told_save:
            return
        module = self._trainer.lightning_module
        if point is SavePoint.IN_BATCH:
            self._has_told_save = True
            log.warning(SAVED_IN_BATCH, module._current_fx_name)
        elif point is SavePoint.BATCH_END and overrides("on_train_batch_end", module, self._family):
            self._has_told_save = True
            log.warning(LEFT_OUT, type(module).__qualname__)

    def restored(self, rates: tuple[float, float] | None, left: Mapping[str, str]) -> None:
        """Warn of what ranks have found after a restart, each on the lowest rank that has found it; all ranks call it.

        Args:
            rates: the learning rates of this rank and of the checkpoint, if they differ.
            left: for each container that the restart leaves as it is, by name, how it differs.
        """
        if self._has_told_rates:
            rates = None
        mine = [*left, *([_RATES] if rates is not None else [])]
        told: list[Any] = [None] * self._trainer.world_size
        dist.all_gather_object(told, mine)
        self._has_told_rates |= any(_RATES in names for names in told)
        said = {name for names in told[: self._trainer.global_rank] for name in names}
        if rates is not None and _RATES not in said:
            log.warning(OWN_RATE, *rates)
        if texts := [text for name, text in left.items() if name not in said]:
            log.warning(LEFTOVERS, ", ".join(texts))
