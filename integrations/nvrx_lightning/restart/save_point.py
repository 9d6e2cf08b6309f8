"""Where in the loops a checkpoint was saved: what of the epoch and of the batch is done, and what a restart must do.

Lightning takes a checkpoint to be saved in the last hook of a batch, of a validation or of an epoch. A user may save in
any hook: `trainer.save_checkpoint` in `on_train_epoch_start` would skip that epoch, and in `on_train_batch_start` count
a batch twice.
"""

from __future__ import annotations

import enum
from typing import Protocol

__all__ = ["SavePoint", "save_point"]


class Counters(Protocol):
    """Lightning's counters of the epochs of a fit, or of its batches."""

    ready: int
    started: int
    processed: int
    completed: int


class SavePoint(enum.Enum):
    """Where a checkpoint was saved."""

    EPOCH_START = "epoch_start"
    """Before the first hook of an epoch, or in it: the epoch is begun anew."""
    BATCH_START = "batch_start"
    """Before anything of a batch was computed: the batch is begun anew."""
    IN_BATCH = "in_batch"
    """While a batch was computed: the batch is repeated, with what it has drawn and logged until then."""
    VOTE = "vote"
    """At the vote of an optimizer step, which is done: what follows it in the batch is done first. No checkpoint is
    saved here: it is in the memory of the ranks."""
    BATCH_END = "batch_end"
    """In the last hook of a batch: what follows it is done first."""
    VALIDATION = "validation"
    """In a validation: it is run again from its start."""
    VALIDATION_END = "validation_end"
    """In the last hook of a validation."""
    EPOCH_END = "epoch_end"
    """In the last hook of an epoch."""
    NEXT_BATCH = "next_batch"
    """Between two batches, in the memory of the ranks: the next batch is fetched again, and nothing else is to do."""
    ELSEWHERE = "elsewhere"
    """Between two batches, or at the end of the fit."""

    @classmethod
    def _missing_(cls, value: object) -> SavePoint:
        """Return the point from which a fit resumes as Lightning does: another version has saved the checkpoint."""
        return cls.ELSEWHERE


def save_point(epoch: Counters, batch: Counters, *, validating: bool, hook: str | None) -> SavePoint:
    """Return where a checkpoint is saved.

    Args:
        epoch: the counters of the epochs.
        batch: the counters of the batches, over all epochs.
        validating: the fit runs a validation.
        hook: the name of the hook that saves; None if it is unknown.
    """
    if validating:
        ends = hook in ("on_validation_end", "on_validation_model_train")
        return SavePoint.VALIDATION_END if ends else SavePoint.VALIDATION
    if epoch.started == epoch.processed:
        return SavePoint.EPOCH_START if epoch.completed == epoch.processed else SavePoint.EPOCH_END
    if batch.ready > batch.processed:
        return SavePoint.IN_BATCH if batch.started > batch.processed else SavePoint.BATCH_START
    return SavePoint.BATCH_END if batch.processed > batch.completed else SavePoint.ELSEWHERE
