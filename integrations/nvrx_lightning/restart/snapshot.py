"""A snapshot of Trainer and model at the start of a fit, restored before each attempt.

Lightning expects that a Trainer whose fit has failed is discarded. State that an attempt leaves behind would corrupt
the next attempt, mostly without an error: counters, a model in eval mode or with `forward` replaced, a `GradScaler` in
the middle of a step. Each entry of `restore` resets one such state. Checkpoint and launcher do the rest.

Private names of Lightning are used here and in `launcher.py`, `loggers.py`, `loops.py`, `memory.py` and
`running_metrics.py` only.
`PRIVATE_NAMES` and `PRIVATE_ATTRIBUTES` list them for the test that fails when one has moved.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from nvrx_core.fault.exceptions import text_of
from nvrx_lightning.families import lookup
from nvrx_lightning.restart.flat_parameters import cut_cycles
from nvrx_lightning.restart.module_snapshot import ModuleSnapshot
from nvrx_lightning.restart.running_metrics import MetricStates
from nvrx_lightning.subclassing import become, keep_name

__all__ = [
    "PRIVATE_ATTRIBUTES",
    "PRIVATE_NAMES",
    "EpochSettings",
    "TrainerSnapshot",
    "checkpoint_folders",
    "checkpoint_saves",
    "epoch_settings",
    "go_on_averaging",
    "overrides",
    "release",
    "spare_from_exceptions",
    "tear_down",
    "unsynchronized",
    "use_checkpoint_saves",
    "use_epoch_settings",
]  # fmt: skip

log = logging.getLogger("nvrx_lightning")

PRIVATE_NAMES: Final = {
    "loops.loop._Loop": (),
    "loops.progress._BaseProgress": (),
    "loops.fetchers._DataFetcher": (),
    "Trainer": ("_teardown",),
    "strategies.Strategy": ("_reset_optimizers_and_schedulers", "_configure_launcher"),
    "strategies.launchers._SubprocessScriptLauncher": ("_call_children_scripts",),
    "trainer.call": ("_call_callback_hooks", "_call_lightning_module_hook"),
    "utilities.exceptions._TunerExitException": (),
    "utilities.model_helpers.is_overridden": (),
}
"""Private names, and the attributes of each that are used."""
PRIVATE_ATTRIBUTES: Final = {
    "Trainer": ("_checkpoint_connector", "_fit_impl", "_logger_connector"),
    "fit_loop": (
        "_can_stop_early",
        "_combined_loader",
        "_data_fetcher",
        "_loaded_from_state_dict",
        "_restarting",
        "_should_reload_train_dl",
        "is_resuming",
        "on_load_checkpoint",
        "restarted_mid_epoch",
        "reset_restart_stage",
    ),
    "epoch_loop": (
        "_batches_that_stepped",
        "_num_ready_batches_reached",
        "_results",
        "_should_accumulate",
        "_should_check_val_fx",
        "_skip_next_val",
        "automatic_optimization",
        "manual_optimization",
        "restarted_on_train_batch_end",
        "update_lr_schedulers",
    ),
    "logger_connector": (
        "_callback_metrics",
        "_current_fx",
        "_first_loop_iter",
        "_logged_metrics",
        "_progress_bar_metrics",
        "on_batch_end",
        "on_epoch_end",
        "reset_results",
        "update_train_epoch_metrics",
        "update_train_step_metrics",
    ),
    "val_loop": ("_combined_loader", "_data_fetcher"),
    "checkpoint_connector": ("_loaded_checkpoint",),
    "strategy": ("_ddp_comm_state", "_ddp_kwargs", "_launcher"),
    "automatic_optimization": ("_make_closure",),
    "Closure": ("_result",),
    "logger": ("_version", "_experiment"),
    "csv_writer": (
        "_rewrite_with_new_header",
        "log_metrics",
        "metrics",
        "metrics_file_path",
        "metrics_keys",
        "save",
    ),
    "tensorboard": ("_version", "_experiment"),
    "ModelCheckpoint": (
        "_defer_save_until_validation",
        "_last_checkpoint_saved",
        "_last_global_step_saved",
        "_save_checkpoint",
    ),
    "StochasticWeightAveraging": ("_initialized", "_latest_update_epoch", "_scheduler_state"),
    "LightningModule": ("_current_fx_name", "_param_requires_grad_state"),
    "Timer": ("_start_time", "_end_time"),
    "TQDMProgressBar": ("_train_progress_bar", "_val_progress_bar"),
    "AsyncCheckpointIO": ("_error",),
    "GradScaler": ("_per_optimizer_states",),
}
"""Private attributes of instances, by class."""


class _LoopSnapshot:
    """The attributes of a loop and of the loops in it."""

    def __init__(self, loop: Any, family: str) -> None:
        self._loop = loop
        self._progress = lookup(family, "loops.progress._BaseProgress")
        kind = lookup(family, "loops.loop._Loop")
        self._attributes = dict(vars(loop))
        self._inner = [_LoopSnapshot(each, family) for each in vars(loop).values() if isinstance(each, kind)]
        self._attributes |= self._copied(self._attributes)

    def _copied(self, attributes: dict[str, Any]) -> dict[str, Any]:
        return {name: copy.deepcopy(each) for name, each in attributes.items() if isinstance(each, self._progress)}

    def restore(self) -> None:
        """Restore the loop's attributes; the counters are copied, so that the snapshot can be restored again.

        A fault of another rank may interrupt it, and the teardown that follows needs a loop that has them all.
        """
        attributes = {**self._attributes, **self._copied(self._attributes)}
        vars(self._loop).update(attributes)
        for name in vars(self._loop).keys() - attributes.keys():
            del vars(self._loop)[name]
        for each in self._inner:
            each.restore()


class TrainerSnapshot:
    """The state of the Trainer at the start of its fit.

    Args:
        trainer: the Trainer, its state set for the fit.
        module: the model of the fit.
        family: the Lightning package of both.
        keep_weights: copy the model's weights, too.
    """

    def __init__(self, trainer: Any, module: torch.nn.Module, family: str, *, keep_weights: bool) -> None:
        self._trainer = trainer
        self._state, self._accumulated = dict(vars(trainer.state)), trainer.accumulate_grad_batches
        self._loops = _LoopSnapshot(trainer.fit_loop, family)
        flattened = isinstance(trainer.strategy, lookup(family, "strategies.FSDPStrategy"))  # in place, by FSDP1
        rebuilt = flattened or overrides("configure_model", module, family)
        self.module = ModuleSnapshot(module, keep_weights=keep_weights, rebuilt=rebuilt)
        self._metrics = MetricStates(module)
        averaging = lookup(family, "callbacks.StochasticWeightAveraging")
        self._averages = [(each, dict(vars(each))) for each in trainer.callbacks if isinstance(each, averaging)]
        others = [each for each in trainer.callbacks if not isinstance(each, averaging)]
        self._callbacks = [(each, _state_of(each)) for each in others]
        self._checkpoints = [(each, _memory(each)) for each in _saving(trainer)]
        self._precision = copy.deepcopy(trainer.precision_plugin.state_dict())
        timer = lookup(family, "callbacks.Timer")
        self._timers = [each for each in trainer.callbacks if isinstance(each, timer)]

    def restore(self, *, weights: bool, in_memory: bool = False) -> None:
        """Restore Trainer and model; a checkpoint is loaded on top later.

        Args:
            weights: restore the initial weights, too, because there is no checkpoint.
            in_memory: parameters, gradients and precision plugin stay as the fault has left them.
        """
        trainer = self._trainer
        vars(trainer.state).update(self._state)
        trainer.should_stop, trainer.accumulate_grad_batches = False, self._accumulated
        self._loops.restore()
        trainer._checkpoint_connector._loaded_checkpoint = {}
        vars(self.module.module)["_current_fx_name"] = None
        self._restore_callbacks()
        if not in_memory:
            self._restore_precision()
        _close_progress_bars(trainer)
        _forget_failed_writes(trainer.strategy)
        self.module.restore(weights=weights, in_memory=in_memory)
        self._metrics.restore(self.module.module)

    def _restore_callbacks(self) -> None:
        """Reset callbacks, except for their elapsed time: the time of a fit includes its restarts."""
        for callback, state in self._callbacks:
            if callback in self._timers:
                _carry_on(callback)
            else:
                _begin_anew(callback, copy.deepcopy(state))
        for callback, memory in self._checkpoints:
            vars(callback).update(memory)
            vars(callback).pop("nvrx_saves_again", None)  # else ranks of different attempts differ in it, and hang
        for callback, attributes in self._averages:
            callback.reset_momenta()  # of the batch norms that its last epoch measures
            vars(callback).update(attributes)

    def _restore_precision(self) -> None:
        plugin = self._trainer.precision_plugin
        scaler = getattr(plugin, "scaler", None)
        if scaler is not None and scaler.is_enabled():
            scaler._per_optimizer_states.clear()
        if self._precision:
            plugin.load_state_dict(copy.deepcopy(self._precision))

    def keep_time(self, checkpoint: dict[str, Any]) -> None:
        """Keep the elapsed time of a `Timer` (`max_time`), which a checkpoint would reset."""
        for callback in self._timers:
            if callback.state_key in checkpoint.get("callbacks", {}):
                checkpoint["callbacks"][callback.state_key] = callback.state_dict()


def go_on_averaging(trainer: Any, family: str) -> None:
    """Make the schedule of averages of weights, which Lightning makes at the start of an epoch only.

    The hook is called for the epoch in which it has averaged last: it makes the schedule, and averages nothing.
    """
    epochs, averaging = trainer.fit_loop.epoch_progress.current, lookup(family, "callbacks.StochasticWeightAveraging")
    for callback in (each for each in trainer.callbacks if isinstance(each, averaging)):
        if callback._scheduler_state is not None and not callback._initialized:
            now, epochs.completed = epochs.completed, callback._latest_update_epoch
            callback.on_train_epoch_start(trainer, trainer.lightning_module)
            epochs.completed = now


def checkpoint_saves(trainer: Any) -> dict[str, dict[str, Any]]:
    """Return what each checkpoint callback will know of its saves, once the save that is under way is done."""
    saves = {}
    for callback in _saving(trainer):
        saves[callback.state_key] = memory = _memory(callback)
        if callback.nvrx_saves_to:
            memory |= {_SAVED_AT: trainer.global_step, _SAVED_TO: callback.nvrx_saves_to}
    return saves


def use_checkpoint_saves(
    trainer: Any, step: int, saves: dict[str, dict[str, Any]], later: frozenset[str] | None = None
) -> None:
    """Tell checkpoint callbacks of their saves until the checkpoint from which the attempt resumes.

    Args:
        trainer: the Trainer.
        step: the global step of the checkpoint.
        saves: what they knew; one that is not in it takes the checkpoint to be its own.
        later: files of this fit that were saved later; they are saved again, under the same names. None if the attempt
            does not resume from memory.
    """
    for callback in _saving(trainer):
        vars(callback).update(saves.get(callback.state_key, {_SAVED_AT: step}))
        callback.nvrx_saves_again = later


def _saving(trainer: Any) -> list[Any]:
    return [become(each, telling_its_save) for each in trainer.callbacks if hasattr(each, _SAVED_AT)]


def telling_its_save(kind: Any) -> type[Any]:
    """Return a subclass of a checkpoint callback that names the file it is saving."""

    class TellingItsSave(kind):  # type: ignore[misc]
        nvrx_saves_to: str | None = None
        nvrx_saves_again: frozenset[str] | None = None

        def file_exists(self, filepath: Any, trainer: Any) -> bool:
            exists = bool(super().file_exists(filepath, trainer))
            if not exists or self.nvrx_saves_again is None:
                return exists
            return str(filepath) not in trainer.strategy.broadcast(self.nvrx_saves_again)

        def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
            self.nvrx_saves_to = filepath
            try:
                super()._save_checkpoint(trainer, filepath)
            finally:
                self.nvrx_saves_to = None

    return keep_name(TellingItsSave, kind)  # a checkpoint has its state under this name


_SAVED_AT: Final = "_last_global_step_saved"
_SAVED_TO: Final = "_last_checkpoint_saved"
_MEMORY: Final = (_SAVED_AT, _SAVED_TO, "_defer_save_until_validation")


def _carry_on(timer: Any) -> None:
    """Make a timer add the elapsed time to that of the next attempt, without counting any time twice."""
    timer.load_state_dict(timer.state_dict())
    for times in (timer._start_time, timer._end_time):
        times.update(dict.fromkeys(times))


def _state_of(callback: Any) -> dict[str, Any] | None:
    """Return a callback's state before the fit; None if it has no state before its `setup`."""
    try:
        state: dict[str, Any] = copy.deepcopy(callback.state_dict())
    except Exception as error:  # boundary: a callback of the user; Lightning asks it in the training only
        log.warning(
            "%s has no state before the fit: a restart without a checkpoint leaves it as it is (%s)",
            type(callback).__qualname__, text_of(error),
        )  # fmt: skip
        return None
    return state


def _begin_anew(callback: Any, state: dict[str, Any] | None) -> None:
    """Restore the state that a callback had when the fit began, even if it was empty."""
    if state is None:
        return
    if "dirpath" in state:  # of a ModelCheckpoint, whose `setup` has set it since; it takes no state of another folder
        state = {**state, "dirpath": callback.dirpath}
    try:
        if state or callback.state_dict():
            callback.load_state_dict(state)
    except Exception:  # boundary: a callback of the user; a checkpoint may have its state
        log.exception("%s does not take its initial state: it stays as the fault left it", type(callback).__qualname__)


def _memory(callback: Any) -> dict[str, Any]:
    """Return the attributes that a checkpoint callback keeps but does not save."""
    return {name: vars(callback)[name] for name in _MEMORY if name in vars(callback)}


def _close_progress_bars(trainer: Any) -> None:
    """Close the bars of the attempt that ended: the next one makes its own."""
    bar = trainer.progress_bar_callback
    for name in ("_train_progress_bar", "_val_progress_bar"):
        each = getattr(bar, name, None)
        if each is not None and hasattr(each, "close"):
            each.close()
            setattr(bar, name, None)


def _forget_failed_writes(strategy: Any) -> None:
    """Drop a failure of the previous attempt, which an asynchronous writer would raise at the next save."""
    writer = strategy.checkpoint_io
    while writer is not None:
        if getattr(writer, "_error", None) is not None:
            writer._error = None
        writer = getattr(writer, "checkpoint_io", None)


def spare_from_exceptions(callback: Any, family: str) -> bool:
    """Return whether a callback must not see a fault: it would save a checkpoint in the middle of an abort."""
    return isinstance(callback, lookup(family, "callbacks.Checkpoint"))


def tear_down(trainer: Any, error: BaseException, family: str) -> None:
    """Shut down what an attempt started: data loader workers, signal handlers, live displays. Failures are logged."""
    for what, act in _steps(trainer, error, family):
        try:
            act()
        except Exception:  # boundary: callbacks and plug-ins of the user, after a fault
            log.exception("%s failed while a restart was prepared", what)


def _steps(trainer: Any, error: BaseException, family: str) -> Iterator[tuple[str, Callable[[], object]]]:
    for callback in trainer.callbacks:
        if not spare_from_exceptions(callback, family):
            name = f"{type(callback).__qualname__}.on_exception"
            yield name, functools.partial(callback.on_exception, trainer, trainer.lightning_module, error)
    trainer.training = True  # so that the fit loop is torn down, not only the validation loop in it
    yield "the Trainer's teardown", trainer._teardown
    yield "the release of the model", lambda: release(trainer)


@contextmanager
def sigterm_ends_the_batch(trainer: Any) -> Iterator[None]:
    """Return a context in which SIGTERM is noted, and ends the fit after the batch.

    Lightning's own handler first broadcasts it and waits, but the other ranks may not have received SIGTERM.
    """
    connector = trainer._signal_connector

    def note(signum: int, frame: object) -> None:
        if not connector.received_sigterm:
            trainer.strategy.launcher.kill(signum)
        connector.received_sigterm = True

    connector._sigterm_notifier_fn = note
    try:
        yield
    finally:
        vars(connector).pop("_sigterm_notifier_fn", None)


def release(trainer: Any) -> None:
    """Drop the references to the attempt's wrapped model, its optimizers and its data loaders."""
    strategy, loop = trainer.strategy, trainer.fit_loop
    if strategy.model is not None:
        cut_cycles(strategy.model)
    strategy.model = None
    strategy._reset_optimizers_and_schedulers()
    loop._combined_loader = loop._data_fetcher = None
    loop.epoch_loop.val_loop._combined_loader = loop.epoch_loop.val_loop._data_fetcher = None


def epoch_settings(trainer: Any) -> dict[str, Any]:
    """Return what callbacks set at the start of an epoch: the frozen layers, the batches to accumulate."""
    return EpochSettings(trainer).now()


class EpochSettings:
    """`epoch_settings`, asked often: the parameters and modules of an attempt are looked up once."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        module = trainer.lightning_module
        self._parameters = list(module.named_parameters())
        self._norms = [each for each in module.named_modules() if hasattr(each[1], "track_running_stats")]

    def now(self) -> dict[str, Any]:
        """Return the settings."""
        toggled = self._trainer.lightning_module._param_requires_grad_state  # for one optimizer's step
        frozen = [name for name, each in self._parameters if not toggled.get(each, each.requires_grad)]
        untracked = [name for name, each in self._norms if not each.track_running_stats]
        return {"accumulated": self._trainer.accumulate_grad_batches, "frozen": frozen, "untracked": untracked}


def use_epoch_settings(trainer: Any, settings: dict[str, Any]) -> None:
    """Restore these settings, in the middle of the epoch or after it."""
    trainer.accumulate_grad_batches = settings["accumulated"]
    frozen, untracked = set(settings["frozen"]), set(settings["untracked"])
    for name, parameter in trainer.lightning_module.named_parameters():
        if parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)
    for name, module in trainer.lightning_module.named_modules():
        tracks = name not in untracked
        if getattr(module, "track_running_stats", tracks) != tracks:  # torch.jit sets none that is as it was compiled
            module.track_running_stats = tracks


def unsynchronized(trainer: Any, family: str) -> list[str]:
    """Return the frozen parameters of a model that DDP has just wrapped: it never averages their gradients."""
    if trainer.world_size == 1 or not isinstance(trainer.strategy, lookup(family, "strategies.DDPStrategy")):
        return []
    return [name for name, each in trainer.lightning_module.named_parameters() if not each.requires_grad]


def checkpoint_folders(trainer: Any, family: str) -> tuple[list[Path], list[str]]:
    """Return the checkpoint folders that the user has configured; those of a logger are new in each job.

    Returns:
        Those on a file system, and the remote ones (s3://).
    """
    kind = lookup(family, "callbacks.ModelCheckpoint")
    named = [str(each.dirpath) for each in trainer.callbacks if isinstance(each, kind) and each.dirpath]
    local = [name.removeprefix("file://") for name in named]
    return [Path(name) for name in local if "://" not in name], [name for name in local if "://" in name]


def overrides(method: str, owner: Any, family: str) -> bool:
    """Return whether the user's model or data module overrides a method."""
    return bool(lookup(family, "utilities.model_helpers.is_overridden")(method, owner))
