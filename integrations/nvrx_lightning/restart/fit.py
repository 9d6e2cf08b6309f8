"""One `Trainer.fit` under the wrapper: its attempts, and the teardown and restore between them.

The order of a restart: the wrapper aborts collectives and interrupts the attempt. Its `finalize` phase, which is not
interrupted, tears the Trainer down. The ranks synchronize and are assigned their ranks. The next attempt restores the
Trainer, agrees on a checkpoint, and calls Lightning's fit again.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from nvrx_core.errors import PeerExited, RestartAbort
from nvrx_core.inprocess import CallWrapper, FrozenState, last_restart
from nvrx_core.inprocess.finalize import Finalize
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart, given_up
from nvrx_core.inprocess.restart_record import RestartRecord
from nvrx_lightning import environment
from nvrx_lightning.families import lookup
from nvrx_lightning.options import InProcessOptions
from nvrx_lightning.restart.checkpoint import SavedCheckpoints, agree, newest_in
from nvrx_lightning.restart.data import Position, TrainData, begins_epoch
from nvrx_lightning.restart.drawn_order import EpochDraws
from nvrx_lightning.restart.loggers import RESTARTS, CsvRows, logger_versions, use_logger_versions
from nvrx_lightning.restart.loops import batch_is_processed, begin_epoch, continue_exactly, finish_epoch, forget_results
from nvrx_lightning.restart.preparation import prepare_data
from nvrx_lightning.restart.random_state import RandomState
from nvrx_lightning.restart.rank_states import RankState, RankStates
from nvrx_lightning.restart.running_metrics import callback_metrics, use_callback_metrics
from nvrx_lightning.restart.snapshot import (
    TrainerSnapshot,
    checkpoint_folders,
    epoch_settings,
    sigterm_ends_the_batch,
    tear_down,
    use_epoch_settings,
)

__all__ = ["CHECKPOINT_KEY", "RestartableFit"]

log = logging.getLogger("nvrx_lightning")
CHECKPOINT_KEY = "nvrx"
"""The key of the position in the epoch in a checkpoint."""
_ENDS = frozenset({"KeyboardInterrupt", "PeerExited", "RestartAbort", "SIGTERMException", "SystemExit"})
"""Exceptions with which a rank leaves the job."""
_CTRL_C = "KeyboardInterrupt"
"""Lightning ends a process by exit code 1 for it, as `RestartAbort` does."""
SIGTERM_CODE = 128 + signal.SIGTERM
"""The exit code of all ranks; Lightning raises the exception without a code, which is a completion."""


class RestartableFit(Finalize):
    """One fit.

    Args:
        trainer: the Trainer, its state set for the fit.
        function: Lightning's implementation of the fit.
        args, kwargs: its arguments.
        options: the options of the strategy.
        family: the name of the Lightning package.
    """

    def __init__(
        self, trainer: Any, function: Callable[..., Any], call: tuple[tuple[Any, ...], dict[str, Any]],
        *, options: InProcessOptions, family: str,
    ) -> None:  # fmt: skip
        self._trainer, self._function = trainer, function
        self._options, self._family = options, family
        self._arguments = inspect.signature(function).bind(*call[0], **call[1])
        self._arguments.apply_defaults()
        self._users_checkpoint = self._arguments.arguments.get("ckpt_path")
        self.saved, self._rank_states, self._draws = SavedCheckpoints(), RankStates(), EpochDraws()
        self._tuner_exit = lookup(family, "utilities.exceptions._TunerExitException")
        self._sigterm = lookup(family, "utilities.exceptions.SIGTERMException")
        self._call: CallWrapper | None = None
        self._error: BaseException | None = None
        self._stopped: BaseException | None = None
        self._highest_step = 0
        self.attempt = 0
        self._begin_attempt(0.0)

    def _begin_attempt(self, entered: float) -> None:
        self._entered = entered
        self._resumed: dict[str, Any] | None = None
        self._data: TrainData | None = None
        self._state: RankState | None = None
        self._random: RandomState | None = None
        self._own = False  # the checkpoint is one of this job's

    def run(self) -> Any:
        """Run the fit until all ranks have completed it.

        Raises:
            BaseException: the exception that ends the fit: the user's error after repeated failures, KeyboardInterrupt,
                SystemExit, or an error of the wrapper.
        """
        strategy = self._trainer.strategy
        environment.publish(strategy.cluster_environment)
        if dist.is_initialized():
            dist.destroy_process_group()  # left by an earlier fit or validation
        model = self._arguments.arguments["model"]
        keep = self._options.keep_initial_weights
        self._snapshot = TrainerSnapshot(self._trainer, model, self._family, keep_weights=keep)
        self._random_at_entry = RandomState.now()
        self._rows = CsvRows(self._trainer, self._family)
        restartable: Callable[..., Any] = self._options.make_wrapper(finalize=self)(self._attempt)
        try:
            with _monitored(self._trainer), sigterm_ends_the_batch(self._trainer), warnings.catch_warnings():
                result = restartable()
        except self._sigterm as error:
            raise self._sigterm(SIGTERM_CODE) from error
        finally:
            self._call = None
            environment.assign_from_variables()
            strategy.set_world_ranks()
        if self._stopped is not None:
            raise self._stopped
        return result

    def _attempt(self, call_wrapper: CallWrapper) -> Any:
        self._call, self._error, self.attempt = call_wrapper, None, call_wrapper.iteration
        self._begin_attempt(time.monotonic())
        state = call_wrapper.state
        rank = state.rank if state.active_rank is None else state.active_rank
        world_size = state.world_size if state.active_world_size is None else state.active_world_size
        environment.assign(rank, world_size)
        self._trainer.strategy.set_world_ranks()
        if self.attempt > 0:
            end_if_ended(last_restart())
            self._restore(rank, world_size)
        elif self._options.resume == "auto" and self._users_checkpoint is None:
            self._continue_job(rank, world_size)
        continue_exactly(self._trainer, exactly=self._own)
        try:
            return self._function(*self._arguments.args, **self._arguments.kwargs)
        except self._tuner_exit as error:
            self._stopped = error
            return None
        except self._sigterm as error:
            raise self._sigterm(SIGTERM_CODE) from error
        except BaseException as error:  # boundary: callbacks hear of it once the attempt is over
            self._error = error
            raise

    def _restore(self, rank: int, world_size: int) -> None:
        """Restore the Trainer, and choose the checkpoint of the attempt."""
        assert self._call is not None
        checkpoint = self._checkpoint(rank, world_size)
        if checkpoint is None and not self._snapshot.module.has_weights:
            nothing = RestartAbort(
                "a restart before the first checkpoint, and no initial weights were kept",
                advice="set keep_initial_weights=True, or save a checkpoint earlier",
            )
            restart = last_restart()
            raise given_up(nothing, restart.exit if restart is not None else None)
        self._snapshot.restore(weights=checkpoint is None)
        forget_results(self._trainer)
        self._random_at_entry.restore()
        self._arguments.arguments["ckpt_path"] = checkpoint
        log.info("attempt %d begins from %s", self.attempt, checkpoint or "the initial weights")
        for callback in self._trainer.callbacks:
            if callable(hook := getattr(callback, "on_restart", None)):
                hook(self._trainer, self._arguments.arguments["model"], self.attempt)

    def _continue_job(self, rank: int, world_size: int) -> None:
        """Resume from the newest checkpoint in the callbacks' folders, if a launcher has restarted the job."""
        assert self._call is not None
        if rank == 0 and environment.was_restarted():
            for path in reversed(newest_in(checkpoint_folders(self._trainer, self._family))):
                self.saved.saved(path, 0)
        chosen = agree(self._call.store, rank, world_size, self.saved)
        self._arguments.arguments["ckpt_path"], self._own = chosen, chosen is not None

    def _checkpoint(self, rank: int, world_size: int) -> Any:
        assert self._call is not None
        resume = self._options.resume
        chosen = agree(self._call.store, rank, world_size, self.saved) if resume == "auto" else resume
        self._own = chosen is not None
        return os.fspath(chosen) if chosen is not None else self._users_checkpoint

    def __call__(self, state: FrozenState) -> FrozenState:
        """Tear the Trainer down after an attempt; the wrapper's `finalize`.

        Raises:
            SIGTERMException: if SIGTERM was received in the attempt before a fault ended it.
        """
        if self._trainer.received_sigterm:
            raise self._sigterm(SIGTERM_CODE)
        self._highest_step = max(self._highest_step, self._trainer.global_step)
        if batch_is_processed(self._trainer):
            self._rank_states.interrupted(self.attempt, self._trainer.global_step, RankState.now(self._trainer))
        error, self._error = self._error, None
        tear_down(self._trainer, error or RankShouldRestart(), self._family)
        self._begin_attempt(0.0)
        self._call = None
        return state

    # Hooks called by the strategy

    def group_made(self, strategy: Any) -> None:
        """Share the state that only rank 0 had, and stand in for lost ranks: the process group exists."""
        trainer = self._trainer
        sent = (logger_versions(trainer), self._rows.at_entry) if strategy.is_global_zero else None
        versions, self._rows.at_entry = strategy.broadcast(sent)
        use_logger_versions(trainer, versions)
        if self.attempt == 0:
            return
        if strategy.is_global_zero:
            self._rows.begin_attempt(anew=not self._own)
        mine = strategy.node_rank, strategy.local_rank
        places: list[Any] = [None] * strategy.world_size
        dist.all_gather_object(places, mine)
        prepare_data(trainer, self._family, places, mine)

    def data(self, replicas: int, rank: int) -> TrainData:
        """Return the training data of the attempt."""
        if self._data is None:
            self._data = TrainData(replicas, rank, self._position(), exactly=self._own, draws=self._draws)
        return self._data

    def _position(self) -> Position | None:
        return Position.read((self._resumed or {}).get("position"))

    @property
    def resuming(self) -> bool:
        """Whether a checkpoint was loaded in this attempt."""
        return self._resumed is not None

    def saving(self, checkpoint: dict[str, Any], replicas: int, rank: int) -> None:
        """Add the position to a checkpoint, and keep this rank's state for it."""
        trainer = self._trainer
        token = self._rank_states.keep(self.attempt, trainer.global_step, RankState.now(trainer))
        position = self.data(replicas, rank).position(trainer)
        checkpoint[CHECKPOINT_KEY] = {"position": position.written(), "token": token, "world_size": replicas}
        stepped = trainer.fit_loop.epoch_loop._batches_that_stepped
        checkpoint[CHECKPOINT_KEY]["logged"] = self._rows.counted(stepped)
        checkpoint[CHECKPOINT_KEY]["settings"] = epoch_settings(trainer)
        checkpoint[CHECKPOINT_KEY]["callback_metrics"] = callback_metrics(trainer)

    def loaded(self, checkpoint: dict[str, Any], replicas: int) -> None:
        """Take the position from a checkpoint."""
        written = checkpoint.get(CHECKPOINT_KEY)
        self._resumed = written if isinstance(written, dict) else {}
        if self._own and self.attempt > 0:
            self._rows.go_back(self._resumed.get("logged"))
        self._snapshot.keep_time(checkpoint)
        self._snapshot.resumed_at(int(checkpoint.get("global_step", 0)))
        if self._resumed.get("world_size") == replicas:
            expected = self._own and self.attempt > 0
            self._state = self._rank_states.of(self._resumed.get("token"), expected=expected)
            self._random = self._state.random if self._state is not None else None

    def train_loader_made(self) -> None:
        """Restore the random state before a new epoch: its loader draws a seed for its workers."""
        if begins_epoch(self._trainer, self._position(), exactly=self._own):
            self._restore_random()

    def train_started(self) -> None:
        """Restore random state and metrics, and log the restart: the attempt is about to train."""
        self._restore_random()
        if self._own:
            self._go_on(self._resumed or {})
        if self.attempt > 0:
            begin_epoch(self._trainer)
            self._log_restart()
        else:
            self._users_checkpoint = self._trainer.ckpt_path  # what "last" or "best" stood for

    def _go_on(self, resumed: dict[str, Any]) -> None:
        """Restore the state that nvrx has added to a checkpoint of this job."""
        use_callback_metrics(self._trainer, resumed.get("callback_metrics", {}))
        if self._state is not None:
            self._state.metrics.restore(self._trainer)
        finish_epoch(self._trainer)
        if self.attempt > 0 and "settings" in resumed:
            use_epoch_settings(self._trainer, resumed["settings"])

    def _restore_random(self) -> None:
        if self._random is not None:
            self._random.restore()
            self._random = None

    def _log_restart(self) -> None:
        """Write the restart to the Trainer's loggers."""
        trainer, restart = self._trainer, last_restart()
        seconds = time.monotonic() - self._entered + (restart.seconds if restart is not None else 0.0)
        metrics = {
            RESTARTS: float(self.attempt),
            "nvrx/restart_seconds": seconds,
            "nvrx/lost_steps": float(max(0, self._highest_step - trainer.global_step)),
        }
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step)

    def batch_started(self) -> None:
        """Report progress, which only the limit on restarts without progress uses; it does not count as a ping."""
        if self._call is not None:
            self._call.progress(self._trainer.fit_loop.total_batch_idx, watched=False)


def end_if_ended(restart: RestartRecord | None) -> None:
    """End the fit if a rank has left it deliberately: the others do not continue without that rank.

    Raises:
        PeerExited: if a rank has left by an exit; the code is that of its process.
        RestartAbort: if a rank has left by Ctrl-C or by `RestartAbort`.
    """
    if restart is None:
        return
    for fault in (restart.cause, restart.exit):
        kind = "" if fault is None else fault.error_type.rpartition(".")[2]
        if fault is None or kind not in _ENDS:
            continue
        reason = f"initial rank {fault.initial_rank} has ended the fit: {fault.message}"
        if fault.exit_code and kind != _CTRL_C:
            raise PeerExited(reason, exit_code=fault.exit_code, culprit=fault.initial_rank)
        raise RestartAbort(reason, culprit=fault.initial_rank)


@contextmanager
def _monitored(trainer: Any) -> Iterator[None]:
    """Return a context in which the callback is connected to the rank monitor.

    It connects before the call, whose monitor process then monitors the rank, and stays connected over restarts.
    """
    from nvrx_lightning.callback import FaultToleranceCallback

    callbacks = [each for each in trainer.callbacks if isinstance(each, FaultToleranceCallback)]
    completed = False
    try:
        for callback in callbacks:
            callback.connect(trainer)
        yield
        completed = True
    finally:
        for callback in callbacks:
            callback.disconnect(trainer, completed=completed)
