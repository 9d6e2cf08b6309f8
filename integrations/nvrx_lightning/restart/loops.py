"""Loops that resume from a checkpoint as if the fit had not been interrupted.

A checkpoint is saved in a hook, before Lightning has finished the batch or the epoch. When it resumes, Lightning skips
what would have followed the hook: the validation after the batch, the end of the epoch, `on_train_end`, a step of
`ReduceLROnPlateau`. These loops do this first. What the hook is part of, they begin anew where Lightning would take it
for done (`save_point.py`).

`snapshot.py` lists the private names of Lightning that are used here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from nvrx_lightning.families import family_of, lookup
from nvrx_lightning.restart.rank_states import RankState
from nvrx_lightning.restart.save_point import SavePoint, save_point
from nvrx_lightning.subclassing import become, keep_name

__all__ = [
    "at_vote", "begin_epoch", "continue_exactly", "counters", "finish_epoch", "finishing_batches",
    "finishing_epochs", "forget_results", "is_over", "loader_is_drawn", "nothing_since_a_save", "saved_at",
    "state_at", "stopped_after",
]  # fmt: skip

_REPEATED: Final = frozenset({SavePoint.BATCH_START, SavePoint.IN_BATCH, SavePoint.NEXT_BATCH})
_AFTER_BATCH: Final = frozenset({SavePoint.VOTE, SavePoint.BATCH_END, SavePoint.VALIDATION, SavePoint.VALIDATION_END})
"""The batch is done; what follows it is not, at a vote with the hooks at its end."""


def continue_exactly(trainer: Any, *, exactly: bool) -> None:
    """Choose how the loops of a fit resume from the checkpoint of this attempt.

    Args:
        trainer: the Trainer.
        exactly: finish the batch or epoch in which the checkpoint was saved; else resume as Lightning does.
    """
    loop = become(trainer.fit_loop, finishing_epochs)
    loop.nvrx_exactly, loop.nvrx_unfinished, loop.nvrx_saved_at = exactly, False, SavePoint.ELSEWHERE
    loop.nvrx_is_restored, loop.nvrx_is_early, loop.nvrx_setups, loop.nvrx_accumulated = False, False, 0, None
    epoch_loop = become(loop.epoch_loop, finishing_batches)
    become(epoch_loop.automatic_optimization, keeping_its_closure).nvrx_closure = None
    epoch_loop.nvrx_ending = None
    epoch_loop.nvrx_pending, epoch_loop.nvrx_validates, epoch_loop.nvrx_stopped_after = None, False, None
    become(epoch_loop.val_loop, remembering_its_start).nvrx_before = None


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
        nvrx_saved_at = SavePoint.ELSEWHERE
        nvrx_is_restored = False  # the counters are those of the checkpoint
        nvrx_is_early = False  # the loader was set up before they were
        nvrx_setups = 0
        nvrx_accumulated: int | None = None  # batches to accumulate where the checkpoint was saved

        def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
            super().on_load_checkpoint(state_dict)
            self.nvrx_is_restored = True

        def setup_data(self) -> None:
            if self.nvrx_is_early and self._loaded_from_state_dict:
                _discard_loader(self)
            kept = self._combined_loader is not None and not self._should_reload_train_dl
            if kept:
                return
            self.nvrx_setups += 1
            resumes = self.nvrx_exactly and self._loaded_from_state_dict
            with _accumulating(self.trainer, self.nvrx_accumulated if resumes else None):
                accumulating = resumes and self.epoch_loop._should_accumulate()
                if resumes:
                    _begin_anew(self)
                super().setup_data()
            self.nvrx_is_early = not self.nvrx_is_restored
            if resumes and self._combined_loader is not None:
                _finish(self, accumulating=accumulating)

        @property
        def done(self) -> bool:
            return self.epoch_loop.nvrx_pending is None and super().done

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

    return keep_name(FinishingEpochs, kind)


@contextmanager
def _accumulating(trainer: Any, batches: int | None) -> Iterator[None]:
    """Return a context in which gradients are accumulated as at the save, and not as at the start of the fit.

    `GradientAccumulationScheduler` sets the number at the start of an epoch, and refuses in `on_train_start` another
    one than 1.
    """
    given = trainer.accumulate_grad_batches
    if batches is not None:
        trainer.accumulate_grad_batches = batches
    try:
        yield
    finally:
        trainer.accumulate_grad_batches = given


def _discard_loader(loop: Any) -> None:
    """Discard a loader that was set up for its length: `estimated_stepping_batches` in `configure_optimizers`."""
    loop.nvrx_is_early = False
    if loop._data_fetcher is not None:
        loop._data_fetcher.teardown()
    loop._data_fetcher = loop._combined_loader = None


def _begin_anew(loop: Any) -> None:
    """Set the counters to the start of the epoch, the batch or the validation in which the checkpoint was saved."""
    batches = loop.epoch_loop
    if loop.nvrx_saved_at is SavePoint.EPOCH_START:
        for epochs in (loop.epoch_progress.total, loop.epoch_progress.current):
            epochs.ready = epochs.started
    elif loop.nvrx_saved_at is SavePoint.VALIDATION:
        batches.val_loop.batch_progress.reset_on_run()
    elif loop.nvrx_saved_at in _REPEATED - {SavePoint.NEXT_BATCH}:
        steps = batches.automatic_optimization.optim_progress.optimizer
        manual = batches.manual_optimization.optim_step_progress
        for progress in (batches.batch_progress, batches.scheduler_progress, steps.step, steps.zero_grad, manual):
            progress.total.reset_on_restart()
            progress.current.reset_on_restart()
        batches.batch_progress.is_last_batch = False


def _finish(loop: Any, *, accumulating: bool) -> None:
    """Finish the epoch or the batch in which the checkpoint was saved.

    Batches without an optimizer step yet are repeated.
    """
    point, batches = loop.nvrx_saved_at, loop.epoch_loop
    if point is SavePoint.EPOCH_START:
        loop._restarting = batches.restarting = False  # now that loaders with a state have loaded it
    elif point is SavePoint.EPOCH_END:
        loop.nvrx_unfinished = True
        loop._restarting = batches.restarting = False  # the next epoch begins, also with max_steps
    elif point in _REPEATED or (point in _AFTER_BATCH and not accumulating):
        if point in (SavePoint.BATCH_END, SavePoint.VOTE):
            progress = batches.batch_progress
            progress.total.completed, progress.current.completed = progress.total.ready, progress.current.ready
        batches.nvrx_pending = point


def finishing_batches(kind: Any) -> type[Any]:
    """Return a subclass of the loop over the batches of an epoch that first finishes the interrupted batch."""

    class FinishingBatches(kind):  # type: ignore[misc]
        nvrx_pending: SavePoint | None = None
        nvrx_validates = False
        nvrx_stopped_after: int | None = None
        nvrx_ending: Any = None  # of the batch of the vote

        @property
        def done(self) -> bool:
            return self.nvrx_pending not in _AFTER_BATCH and super().done

        def advance(self, data_fetcher: Any) -> None:
            pending, self.nvrx_pending = self.nvrx_pending, None
            if self.nvrx_stopped_after is None and self.trainer.should_stop:
                self.nvrx_stopped_after = self.batch_progress.total.ready
            if pending is not None:
                self.val_loop.restarting = False
            if pending in _REPEATED:
                self._restarting = False  # else a validation that was due after the previous batch counts as skipped
            if pending in _AFTER_BATCH:
                self.nvrx_validates = pending is SavePoint.VALIDATION
                self._skip_next_val = pending is SavePoint.VALIDATION_END
                if pending is SavePoint.VOTE:
                    _end_batch(self)
                elif pending is SavePoint.BATCH_END:
                    _log_batch(self.trainer._logger_connector)
            else:
                self.trainer.strategy.nvrx_batch_ended()
                super().advance(data_fetcher)

        def _should_check_val_fx(self, data_fetcher: Any) -> bool:
            due, self.nvrx_validates = self.nvrx_validates, False
            return due or super()._should_check_val_fx(data_fetcher)

    return keep_name(FinishingBatches, kind)


def _end_batch(loop: Any) -> None:
    """Do what Lightning does in a batch after the optimizer step."""
    trainer, progress, ending = loop.trainer, loop.batch_progress, loop.nvrx_ending
    loop.nvrx_ending, number = None, progress.current.ready - 1
    for counters in (progress.total, progress.current):
        counters.completed -= 1
    trainer._results.batch = ending.batch
    loop.update_lr_schedulers("step", update_plateau_schedulers=False)
    if loop._num_ready_batches_reached():
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
    hooks = lookup(family_of(type(trainer)), "trainer.call")
    for call in (hooks._call_callback_hooks, hooks._call_lightning_module_hook):
        call(trainer, "on_train_batch_end", ending.outputs, ending.batch, number)
    progress.increment_completed()
    _log_batch(trainer._logger_connector)


def keeping_its_closure(kind: Any) -> type[Any]:
    """Return a subclass of an optimization whose closure, which has the outputs of the batch, is known at the vote."""

    class KeepingItsClosure(kind):  # type: ignore[misc]
        nvrx_closure: Any = None
        nvrx_keeps = False

        def _make_closure(self, *args: Any) -> Any:
            made = super()._make_closure(*args)
            self.nvrx_closure = made if self.nvrx_keeps else None
            return made

    return keep_name(KeepingItsClosure, kind)


def counters(loop: Any, prefix: str = "") -> dict[str, Any]:
    """Return the state of a loop and of those in it, as its `state_dict` does in ten times the time."""
    own = copy.deepcopy(loop.on_save_checkpoint())  # a loader may return what it goes on with
    state = {f"{prefix}state_dict": own}
    for name, each in vars(loop).items():
        if hasattr(each, "load_state_dict"):
            if hasattr(each, "on_save_checkpoint"):
                state |= counters(each, f"{prefix}{name}.")
            elif hasattr(each, "__dataclass_fields__"):
                state[prefix + name] = _fields(each)
    return state


def _fields(progress: Any) -> dict[str, Any]:
    return {
        name: each if isinstance(each, int) else _fields(each) for name, each in vars(progress).items()
    }  # fmt: skip


def at_vote(loops: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the loops at a vote as it is after the step, with the batch processed.

    Args:
        loops: the state, which is changed.
    """
    batches = loops["epoch_loop.batch_progress"]
    steps = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    for scope in ("total", "current"):
        batches[scope]["processed"] += 1
        steps[scope]["completed"] += 1
    return loops


def _log_batch(connector: Any) -> None:
    """Log the metrics of the batch in whose last hook the checkpoint was saved, if this rank has them."""
    if isinstance(connector._first_loop_iter, bool):
        connector.on_batch_end()
        connector.update_train_step_metrics()


def remembering_its_start(kind: Any) -> type[Any]:
    """Return a subclass of a validation loop that keeps the state in which a validation began."""

    class RememberingItsStart(kind):  # type: ignore[misc]
        nvrx_before: RankState | None = None

        def reset(self) -> None:
            if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
                self.nvrx_before = RankState.now(self.trainer)
                self.trainer.strategy.nvrx_batch_ended(validates=True)
            super().reset()

    return keep_name(RememberingItsStart, kind)


def saved_at(trainer: Any) -> SavePoint:
    """Return where in the loops a checkpoint is saved now."""
    loop = trainer.fit_loop
    return save_point(
        loop.epoch_progress.current,
        loop.epoch_loop.batch_progress.current,
        validating=trainer.validating,
        hook=trainer.lightning_module._current_fx_name,
    )


def state_at(trainer: Any, point: SavePoint) -> RankState:
    """Return the state of this rank to which an attempt that resumes from this point goes back."""
    before: RankState | None = trainer.fit_loop.epoch_loop.val_loop.nvrx_before if trainer.validating else None
    if before is None:
        return RankState.now(trainer)
    return before if point is SavePoint.VALIDATION else RankState.now(trainer).after(before)


def loader_is_drawn(trainer: Any) -> bool:
    """Return whether the loader has drawn its seed for the epoch that begins next; Lightning mostly draws it later."""
    loop = trainer.fit_loop
    draws_later = trainer.current_epoch > 0 and not loop.is_resuming and not loop.epoch_loop.restarting
    return loop._combined_loader is not None and not draws_later


def is_over(trainer: Any) -> bool:
    """Return whether the fit ends here, by its limits or a decision to stop; `FitLoop.done` changes counters."""
    loop = trainer.fit_loop
    limits = (loop.epoch_progress.current.processed, loop.max_epochs), (trainer.global_step, loop.max_steps)
    reached = any(limit is not None and 0 <= limit <= done for done, limit in limits)
    return bool(reached or (trainer.should_stop and loop._can_stop_early))


def stopped_after(trainer: Any) -> int | None:
    """Return after which batch of the fit `should_stop` was set in this attempt; None if it was not."""
    loop = trainer.fit_loop.epoch_loop
    if not trainer.should_stop:
        return None
    return int(loop.batch_progress.total.ready if loop.nvrx_stopped_after is None else loop.nvrx_stopped_after)


def finish_epoch(trainer: Any, *, has_metrics: bool) -> None:
    """Finish an epoch, if the checkpoint was saved in one of the hooks at its end.

    Args:
        trainer: the Trainer.
        has_metrics: this rank has the running metrics of the checkpoint; they are logged if all ranks have them.
    """
    loop = trainer.fit_loop
    if not loop.nvrx_unfinished:
        return
    loop.nvrx_unfinished = False
    connector, batches, current = trainer._logger_connector, loop.epoch_loop, loop.epoch_progress.current
    logs = trainer.strategy.reduce_boolean_decision(has_metrics, all=True)
    current.completed -= 1  # of the epoch that ends
    if logs:
        connector.on_epoch_end()
    if batches._num_ready_batches_reached():
        batches.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    if logs:
        batches._batches_that_stepped -= 1  # Lightning logs the end of an epoch at the step of its last batch
        connector.update_train_epoch_metrics()
        batches._batches_that_stepped += 1
    current.completed += 1
    connector.reset_results()


def nothing_since_a_save(trainer: Any) -> bool:
    """Return whether this rank has computed nothing since a hook in which its peers may have saved a checkpoint.

    That is the case once a batch of this attempt is processed, until the next one begins; and before the first one, in
    the hooks that begin the fit and the epoch.
    """
    batches, hook = trainer.fit_loop.epoch_loop.batch_progress.current, trainer.lightning_module._current_fx_name
    begins = trainer.training and hook in ("on_train_start", "on_train_epoch_start")
    return bool(batches.ready == batches.processed and (batches.processed > 0 or begins))


def begin_epoch(trainer: Any) -> None:
    """Start an epoch with its hooks, if the previous one is not finished (`FinishingBatches.nvrx_finish`).

    Lightning counts the previous epoch as completed and the next one as begun.
    """
    loop = trainer.fit_loop
    saved_in_batch = getattr(loop.epoch_loop, "restarted_on_train_batch_end", False)
    if saved_in_batch and loop.restarted_mid_epoch and loop.epoch_loop.batch_progress.is_last_batch:
        loop.reset_restart_stage()
