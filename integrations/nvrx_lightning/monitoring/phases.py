"""The hooks by which a training reports its phases: setup, steps, validation, end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvrx_lightning import callback_base
from nvrx_lightning.monitoring.training import Training

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer, callbacks

    class Callback(callbacks.Callback, Any):  # type: ignore[misc]
        """What a Trainer of either family accepts."""

else:
    Callback = callback_base.callback_class()

__all__ = ["PhaseReports"]


class PhaseReports(Callback):
    """A callback that reports each phase to `_training`, if it is set."""

    def __init__(self) -> None:
        super().__init__()
        self._training: Training | None = None

    def on_load_checkpoint(self, *_: Any) -> None:
        """Note that the training resumes from a checkpoint."""
        if self._training is not None and self._training.learner is not None:
            self._training.learner.resumed()

    def on_train_start(self, *_: Any) -> None:
        """Note that the setup has ended."""
        if self._training is not None:
            self._training.started()

    def on_train_batch_end(self, *_: Any) -> None:
        """Note that a batch was trained on."""
        if self._training is not None:
            self._training.batch_ended()

    def on_train_epoch_end(self, *_: Any) -> None:
        """Note that an epoch has ended."""
        if self._training is not None and self._training.learner is not None:
            self._training.learner.epoch_ended()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that a validation run begins; the sanity check counts as setup."""
        if self._training is not None and not trainer.sanity_checking:
            self._training.validation_begins()

    def on_validation_batch_start(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Note that a batch of a validation run begins."""
        if self._training is not None and not trainer.sanity_checking:
            self._training.validation_batch_begins()

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """Note that a batch of a validation run has ended."""
        if self._training is not None:
            self._training.validation_batch_ended()

    def on_validation_end(self, *_: Any) -> None:
        """Note that a validation run has ended."""
        if self._training is not None:
            self._training.validation_ended()

    def on_train_end(self, *_: Any) -> None:
        """Note that the training has ended."""
        if self._training is not None:
            self._training.finished()
