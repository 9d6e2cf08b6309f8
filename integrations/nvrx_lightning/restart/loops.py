"""Loops that resume from a checkpoint as if the fit had not been interrupted.

A checkpoint is saved in a hook, before Lightning has finished the batch or the epoch. When it resumes, Lightning skips
what would have followed the hook: the validation after the batch, the end of the epoch, `on_train_end`, a step of
`ReduceLROnPlateau`. These loops do this first.

`snapshot.py` lists the private names of Lightning that are used here.
"""

from __future__ import annotations

from typing import Any

from nvrx_lightning.subclassing import become

__all__ = [
    "batch_is_processed", "begin_epoch", "continue_exactly", "finish_epoch", "finishing_batches", "finishing_epochs",
    "forget_results",
]  # fmt: skip


def continue_exactly(trainer: Any, *, exactly: bool) -> None:
    """Choose how the loops of a fit resume from the checkpoint of this attempt.

    Args:
        trainer: the Trainer.
        exactly: finish the batch or epoch in which the checkpoint was saved; else resume as Lightning does.
    """
    become(trainer.fit_loop.epoch_loop, finishing_batches).nvrx_unfinished = False
    loop = become(trainer.fit_loop, finishing_epochs)
    loop.nvrx_exactly, loop.nvrx_unfinished = exactly, False


def forget_results(trainer: Any) -> None:
    """Drop the results of the ended attempt: a validation that a fault ended would continue with its sums."""
    loop = trainer.fit_loop.epoch_loop
    for results in (loop._results, loop.val_loop._results):
        results.clear()
        results.batch = results.batch_size = results.dataloader_idx = None


def finishing_epochs(kind: Any) -> type[Any]:
    """Return a subclass of a fit loop that first finishes the interrupted epoch."""

    class FinishingEpochs(kind):  # type: ignore[misc]
        nvrx_exactly = False
        nvrx_unfinished = False

        def setup_data(self) -> None:
            loaded = self.nvrx_exactly and self._loaded_from_state_dict
            accumulating = loaded and self.epoch_loop._should_accumulate()
            super().setup_data()
            if not loaded or self._combined_loader is None:
                return
            if _in_last_hook(self.epoch_progress) and self.epoch_loop._num_ready_batches_reached():
                self.nvrx_unfinished = True
                self._restarting = self.epoch_loop.restarting = False  # the next epoch begins, also with max_steps
            elif not accumulating:
                self.epoch_loop.nvrx_finish(self._combined_loader.flattened)

        @property
        def done(self) -> bool:
            return not self.epoch_loop.nvrx_unfinished and super().done

        @property
        def skip(self) -> bool:
            """Whether to skip the loop: not if only the end of an epoch is missing, so that its hooks are called."""
            if self.nvrx_exactly and self._loaded_from_state_dict:
                return self.max_batches == 0 or self.trainer.limit_train_batches == 0  # type: ignore[no-any-return]
            return super().skip  # type: ignore[no-any-return]

        def on_advance_end(self) -> None:
            if self.nvrx_exactly:
                self._restarting = False  # else schedulers that depend on metrics are skipped
            super().on_advance_end()

    return _named(FinishingEpochs, kind)


def finishing_batches(kind: Any) -> type[Any]:
    """Return a subclass of the loop over the batches of an epoch that first finishes the interrupted batch."""

    class FinishingBatches(kind):  # type: ignore[misc]
        nvrx_unfinished = False

        def nvrx_finish(self, loaders: list[Any]) -> None:
            """Finish the batch whose last hook saved the checkpoint.

            Skip the last batch of an epoch whose loader has its own state: that loader has begun the next epoch.
            """
            progress = self.batch_progress
            begun = self._num_ready_batches_reached() and any(hasattr(each, "load_state_dict") for each in loaders)
            if _in_last_hook(progress) and not begun:
                progress.total.completed, progress.current.completed = progress.total.ready, progress.current.ready
                self.nvrx_unfinished = True

        @property
        def done(self) -> bool:
            return not self.nvrx_unfinished and super().done

        def advance(self, data_fetcher: Any) -> None:
            if not self.nvrx_unfinished:
                super().advance(data_fetcher)
                return
            self.nvrx_unfinished = self.val_loop.restarting = False
            connector = self.trainer._logger_connector
            if isinstance(connector._first_loop_iter, bool):  # the running metrics are those of the checkpoint
                connector.on_batch_end()
                connector.update_train_step_metrics()

    return _named(FinishingBatches, kind)


def _named(made: type[Any], kind: Any) -> type[Any]:
    """Keep the class name: profilers identify a loop by it."""
    made.__name__, made.__qualname__ = kind.__name__, kind.__qualname__
    return made


def _in_last_hook(progress: Any) -> bool:
    """Whether the counters have the values of the hook that ends a batch or an epoch."""
    total = progress.total
    return bool(total.ready == total.started == total.processed == total.completed + 1)


def finish_epoch(trainer: Any) -> None:
    """Finish an epoch, if the checkpoint was saved in one of the hooks at its end."""
    loop = trainer.fit_loop
    if not loop.nvrx_unfinished:
        return
    loop.nvrx_unfinished = False
    current = loop.epoch_progress.current
    current.completed -= 1  # of the epoch that ends
    loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    current.completed += 1
    loop.epoch_loop._results.reset()


def batch_is_processed(trainer: Any) -> bool:
    """Return whether a batch of this attempt has been processed and the next one has not begun."""
    batches = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(batches.ready == batches.processed > 0)


def begin_epoch(trainer: Any) -> None:
    """Start an epoch with its hooks, if the previous one is not finished (`FinishingBatches.nvrx_finish`).

    Lightning counts the previous epoch as completed and the next one as begun.
    """
    loop = trainer.fit_loop
    saved_in_batch = getattr(loop.epoch_loop, "restarted_on_train_batch_end", False)
    if saved_in_batch and loop.restarted_mid_epoch and loop.epoch_loop.batch_progress.is_last_batch:
        loop.reset_restart_stage()
