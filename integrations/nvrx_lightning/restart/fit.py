"""One `Trainer.fit` under the wrapper: its attempts, and the teardown and restore between them.

The order of a restart: the wrapper aborts collectives and interrupts the attempt. Its `finalize` phase, which is not
interrupted, tears the Trainer down. The ranks synchronize and are assigned their ranks. The next attempt restores the
Trainer, agrees on a checkpoint, and calls Lightning's fit again.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from torchmetrics import Metric

from nvrx_core.errors import PeerExited, RestartAbort
from nvrx_core.inprocess import CallWrapper, FrozenState, last_restart
from nvrx_core.inprocess.finalize import Finalize
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart, given_up
from nvrx_core.inprocess.restart_record import RestartRecord
from nvrx_lightning import environment
from nvrx_lightning.callback_base import logger_of
from nvrx_lightning.families import lookup
from nvrx_lightning.options import MEMORY, NO_PROGRESS_LIMIT, InProcessOptions
from nvrx_lightning.restart.checkpoint import Saved, SavedCheckpoints, agree, newest_in, step_in
from nvrx_lightning.restart.containers import Containers
from nvrx_lightning.restart.data import Position, TrainData, begins_epoch
from nvrx_lightning.restart.drawn_order import EpochDraws
from nvrx_lightning.restart.fit_warnings import FitWarnings
from nvrx_lightning.restart.job import Job, Start, gathered
from nvrx_lightning.restart.loggers import RESTARTS, CsvRows, finalize_whole, logger_versions, use_logger_versions
from nvrx_lightning.restart.loops import (
    at_vote,
    begin_epoch,
    continue_exactly,
    counters,
    finish_epoch,
    forget_results,
    is_over,
    loader_is_drawn,
    nothing_since_a_save,
    saved_at,
    state_at,
    stopped_after,
)
from nvrx_lightning.restart.memory import IN_MEMORY, IN_WHOLE_EPOCHS, BatchEnding, FitMemory, TrainerState, copied
from nvrx_lightning.restart.memory_choice import BatchStage
from nvrx_lightning.restart.monitors import Monitors
from nvrx_lightning.restart.preparation import prepare_data
from nvrx_lightning.restart.random_state import RandomState
from nvrx_lightning.restart.rank_states import RankState, RankStates
from nvrx_lightning.restart.running_metrics import (
    MetricStates,
    RunningMetrics,
    metrics_in,
    shown_metrics,
    use_shown_metrics,
)
from nvrx_lightning.restart.save_point import SavePoint
from nvrx_lightning.restart.snapshot import (
    EpochSettings,
    TrainerSnapshot,
    checkpoint_folders,
    checkpoint_saves,
    go_on_averaging,
    sigterm_ends_the_batch,
    tear_down,
    unsynchronized,
    use_checkpoint_saves,
    use_epoch_settings,
)
from nvrx_lightning.restart.tuners import is_of_search, search_unless_known
from nvrx_lightning.restart.workers import WorkerStates, detach

__all__ = ["CHECKPOINT_KEY", "RestartableFit"]

log = logging.getLogger("nvrx_lightning")
CHECKPOINT_KEY = "nvrx"
"""The key of what nvrx adds to a checkpoint."""
_ENDS = frozenset({"KeyboardInterrupt", "PeerExited", "RestartAbort", "SIGTERMException", "SystemExit"})
"""Exceptions with which a rank leaves the job."""
_FITS: Final = itertools.count(1)
"""Numbers the fits of the process."""
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
        self._continues_job = options.chooses and self._users_checkpoint is None
        self._has_looked = False  # for the checkpoints that the job had saved before it was started again
        self.saved, self._rank_states, self._draws = SavedCheckpoints(), RankStates(), EpochDraws()
        self._job = Job(frozenset(environment.job_ids().values()), next(_FITS))
        self._log = logger_of(trainer)
        self._workers = WorkerStates()
        limit = dict(options.wrapper or {}).get("no_progress_limit", NO_PROGRESS_LIMIT)
        self.memory = FitMemory(
            trainer, family, on=options.keeps_memory, by_default=options.resume != MEMORY, limit=limit
        )  # fmt: skip
        self._version = lookup(family, "__version__")
        self._tuner_exit = lookup(family, "utilities.exceptions._TunerExitException")
        self._sigterm = lookup(family, "utilities.exceptions.SIGTERMException")
        self._call: CallWrapper | None = None
        self._error: BaseException | None = None
        self._stopped: BaseException | None = None
        self._highest_step = 0
        self._warnings = FitWarnings(trainer, family)
        self._stopped_after: int | None = None
        self._told = ""  # of what is known, it is told once
        self._refused = ""  # why nothing is kept in memory, as an attempt has found
        self._is_told = False  # how rank 0 logs
        self.attempt = 0
        self._begin_attempt(0.0)

    def _begin_attempt(self, entered: float) -> None:
        self._entered = entered
        self._resumed: dict[str, Any] | None = None
        self._data: TrainData | None = None
        self._state: RankState | None = None
        self._random: RandomState | None = None
        self._own = False  # the checkpoint is one of this job's
        self._goes_on = False  # the state of the checkpoint is restored
        self._warnings.unsynchronized = []
        self._settings: EpochSettings | None = None
        self._metrics: dict[str, Metric] = {}

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
        own = frozenset(vars(lookup(self._family, "LightningModule")()))
        self._containers = Containers(self._trainer, model, own)
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
        elif self._continues_job:
            self._arguments.arguments["ckpt_path"] = self._checkpoint(rank, world_size)
        continue_exactly(self._trainer, exactly=self._own)
        search_unless_known(self._trainer, self._family, resumes=self._own)
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
        """Restore the Trainer, and choose what the attempt goes on from."""
        assert self._call is not None
        restart, mine = last_restart(), self._call.state.initial_rank
        self.saved.attempt_ended(by_this_rank=restart is None or not restart.culprits or mine in restart.culprits)
        why_not = self.memory.choose(self._call.store, rank, world_size, self.saved)
        if why_not and rank == 0:
            is_known = why_not in (self._refused, IN_WHOLE_EPOCHS)
            level = logging.DEBUG if why_not == self._told else logging.INFO if is_known else logging.WARNING
            self._log.log(level, "this restart does not go on from memory, but from a checkpoint: %s", why_not)
            self._told = why_not if is_known else ""
        in_memory = self.memory.choice is not None
        self._own = in_memory
        checkpoint = IN_MEMORY if in_memory else self._checkpoint(rank, world_size)
        if checkpoint is None and not self._snapshot.module.has_weights:
            nothing = RestartAbort(
                "a restart before the first checkpoint, and no initial weights were kept",
                advice="set keep_initial_weights=True, or save a checkpoint earlier",
            )
            restart = last_restart()
            raise given_up(nothing, restart.exit if restart is not None else None)
        self._snapshot.restore(weights=checkpoint is None, in_memory=in_memory)
        self._workers.begin_attempt()
        forget_results(self._trainer)
        self._random_at_entry.restore()
        self._arguments.arguments["ckpt_path"] = checkpoint
        if rank == 0:
            self._log.info("attempt %d of the fit begins from %s", self.attempt, checkpoint or "the initial weights")
        for callback in self._trainer.callbacks:
            if callable(hook := getattr(callback, "on_restart", None)):
                hook(self._trainer, self._arguments.arguments["model"], self.attempt)

    def _checkpoint(self, rank: int, world_size: int) -> Any:
        """Choose the checkpoint of the attempt."""
        assert self._call is not None
        if not self._options.chooses:
            self._own = self._options.resume is not None
            return os.fspath(self._options.resume) if self._options.resume is not None else self._users_checkpoint
        looks = self._continues_job and self._look_for_own(rank, world_size)
        chosen = agree(self._call.store, rank, world_size, self.saved)
        self._has_looked, self._own = True, chosen is not None
        if looks and chosen is not None:
            self._log.info("the fit goes on from %s, step %d, which this job has saved", chosen, step_in(chosen, 0))
        return chosen if chosen is not None else self._users_checkpoint

    def _look_for_own(self, rank: int, world_size: int) -> bool:
        """Note, on rank 0, the checkpoints that this job has saved before it was started again.

        An attempt may end before all ranks know them: each looks, until a rank knows what rank 0 has found.

        Returns:
            Whether this rank has looked for them.
        """
        assert self._call is not None
        mine = Start(self._has_looked, environment.earlier_ids(), environment.restarted_ids())
        starts = gathered(self._call.store, rank, world_size, mine)
        if starts is None or any(each.has_looked for each in starts):
            return False
        ids = frozenset(each for start in starts for each in start.ids.values())
        if not ids:
            return False
        where = checkpoint_folders(self._trainer, self._family)
        taken, refused = newest_in(
            where[0], lambda contents: self._job.refusal((contents.get(CHECKPOINT_KEY) or {}).get("job"), ids)
        )
        self.saved.found(Saved(path, 0) for path in reversed(taken))
        restarted = next((each.restarted for each in starts if each.restarted), None)
        if restarted or taken:
            who = restarted or next(each.ids for each in starts if each.ids)
            self._tell_restart(who, taken, refused, where)
        return True

    def _tell_restart(
        self, restarted: Mapping[str, str], taken: list[str], refused: list[str], where: tuple[list[Path], list[str]]
    ) -> None:
        """Log what a job that was started again finds of its own."""
        folders, remote = where
        who = f"{' and '.join(restarted)} has started this job again ({', '.join(restarted.values())})"
        if taken:
            self._log.info("%s: %d checkpoints of it are found", who, len(taken))
        elif refused:
            self._log.warning(
                "%s, and none of the checkpoints in %s is one of it: the fit begins anew. The newest is %s. To go on "
                "from one, pass ckpt_path= to fit", who, ", ".join(map(str, folders)), refused[0],
            )  # fmt: skip
        elif remote:
            self._log.warning(
                "%s: the fit begins anew, because its checkpoints are not looked for in remote folders (%s). To go on "
                "from one, pass ckpt_path= to fit", who, ", ".join(remote),
            )  # fmt: skip
        elif folders:
            self._log.info("%s, before its first checkpoint: the fit begins anew", who)
        else:
            self._log.warning(
                "%s: the fit begins anew, because no ModelCheckpoint has a dirpath of its own, in which the job's "
                "checkpoints would be found; write ModelCheckpoint(dirpath=...)", who,
            )  # fmt: skip

    def __call__(self, state: FrozenState) -> FrozenState:
        """Tear the Trainer down after an attempt; the wrapper's `finalize`.

        Raises:
            SIGTERMException: if SIGTERM was received in the attempt before a fault ended it.
        """
        if self._trainer.received_sigterm:
            raise self._sigterm(SIGTERM_CODE)
        self._highest_step = max(self._highest_step, self._trainer.global_step)
        try:
            self._keep_reached()
        except Exception:  # boundary: `state_dict` of the user's callbacks and schedulers
            log.exception("the state that this rank has reached is not kept")
        if self._goes_on:  # else the decision of an earlier attempt is not taken yet
            self._stopped_after = stopped_after(self._trainer)
        error, self._error = self._error, None
        self.memory.ended(error)
        tear_down(self._trainer, error or RankShouldRestart(), self._family)
        self._begin_attempt(0.0)
        self._call = None
        return state

    def _keep_reached(self) -> None:
        """Keep the state of this rank where its peers may have saved a checkpoint."""
        if (self._goes_on or self._resumed is None) and nothing_since_a_save(self._trainer):
            reached = state_at(self._trainer, saved_at(self._trainer))
            self._rank_states.interrupted(self.attempt, self._trainer.global_step, reached.before_a_save())

    # Hooks called by the strategy

    def group_made(self, strategy: Any) -> None:
        """Share the state that only rank 0 has had, and stand in for lost ranks: the process group exists."""
        trainer, mine = self._trainer, (strategy.node_rank, strategy.local_rank)
        sent: list[Any] = [None] * strategy.world_size
        known = self._is_told, logger_versions(trainer), self._rows.at_entry
        dist.all_gather_object(sent, (*known, mine, self._stopped_after, self._job.ids))
        are_told, versions, rows, places, stops, ids = zip(*sent, strict=True)
        teller = are_told.index(True) if any(are_told) else 0  # rank 0 may be new
        self._rows.at_entry = rows[teller]
        use_logger_versions(trainer, versions[teller])
        self._is_told = True
        self._job = self._job.joined(itertools.chain.from_iterable(ids))
        self._stopped_after = min((after for after in stops if after is not None), default=None)
        if self.attempt > 0:
            if strategy.is_global_zero:
                self._rows.begin_attempt(anew=not self._own)
            prepare_data(trainer, self._family, list(places), mine)

    def data(self, replicas: int, rank: int) -> TrainData:
        """Return the training data of the attempt."""
        if self._data is None:
            self._data = TrainData(replicas, rank, self._position(), exactly=self._own, draws=self._draws)
        return self._data

    def _position(self) -> Position | None:
        return Position.read((self._resumed or {}).get("position"))

    def saving(self, checkpoint: dict[str, Any], replicas: int, rank: int) -> None:
        """Add the position to a checkpoint, and keep this rank's state for it."""
        trainer, point = self._trainer, saved_at(self._trainer)
        self._rank_states.retain(self.saved.tokens)
        token = self._rank_states.keep(self.attempt, trainer.global_step, state_at(trainer, point))
        position = self.data(replicas, rank).position(trainer)
        checkpoint[CHECKPOINT_KEY] = {
            **self._added(point, position, replicas), **shown_metrics(trainer), "token": token,
            "job": self._job.written(),
        }  # fmt: skip
        if point is SavePoint.EPOCH_START:
            checkpoint[CHECKPOINT_KEY]["drawn"] = loader_is_drawn(trainer)
        if trainer.is_global_zero:
            self._warnings.saved(point, set(checkpoint[CHECKPOINT_KEY]["settings"]["frozen"]))
        self._workers.keep(token, position.batches)
        self._containers.keep(token)

    def _added(self, point: SavePoint, position: Position, replicas: int) -> dict[str, Any]:
        """Return what an attempt needs besides what Lightning saves."""
        trainer = self._trainer
        stepped = trainer.fit_loop.epoch_loop._batches_that_stepped
        return {
            "position": position.written(), "world_size": replicas, "logged": self._rows.counted(stepped),
            "settings": (self._settings or EpochSettings(trainer)).now(), "saves": checkpoint_saves(trainer),
            "saved_at": point.value, "should_stop": bool(trainer.should_stop),
        }  # fmt: skip

    def _trainer_state(
        self, point: SavePoint, replica: tuple[int, int], ending: BatchEnding | None = None
    ) -> TrainerState:  # fmt: skip
        """Return the state of the Trainer.

        Args:
            point: where in the loops it is: at a vote, at the begin of a validation, or of a batch.
            replica: the number of replicas of the data, and that of this rank.
            ending: at the vote of an optimizer step, how the batch ends.
        """
        trainer, voting = self._trainer, point is SavePoint.VOTE
        loops, step = counters(trainer.fit_loop), int(trainer.global_step) + voting
        loops = at_vote(loops) if voting else loops
        position = self.data(*replica).position(trainer, further=int(voting))
        states = self.memory.checked({each.state_key: each.state_dict() for each in trainer.callbacks})
        schedulers = [each.scheduler for each in trainer.lr_scheduler_configs]
        rates = {f"{type(each).__name__} {number}": each.state_dict() for number, each in enumerate(schedulers)}
        checkpoint = {
            "epoch": trainer.current_epoch, "global_step": step, "pytorch-lightning_version": self._version,
            "state_dict": {}, "optimizer_states": [], "loops": {"fit_loop": loops},
            "callbacks": {name: copied(each) for name, each in states.items() if each},
            "lr_schedulers": [copied(each) for each in self.memory.checked(rates).values()],
            CHECKPOINT_KEY: self._added(point, position, replica[0]),
        }  # fmt: skip
        if (data := trainer.datamodule) is not None and (state := data.state_dict()):
            name = type(data).__qualname__
            checkpoint[name] = copied(self.memory.checked({name: state})[name])
        if point is SavePoint.VALIDATION:
            metrics = state_at(trainer, point).metrics
        else:
            metrics = RunningMetrics.now(trainer, MetricStates.of(self._metrics))
        rank = RankState(RandomState.now(), metrics, Monitors([], [], {}, {}))
        kept = self._workers.now(position.batches)
        settings = [] if voting else [
            [{name: copied(each) for name, each in group.items() if name != "params"} for group in each.param_groups]
            for each in trainer.optimizers
        ]  # fmt: skip
        return TrainerState(step, checkpoint, settings, rank, kept, self._containers.lengths(), ending)

    def committing(self, strategy: Any, optimizer: Any) -> AbstractContextManager[None]:
        """Return the context of an optimizer step, which a vote of all ranks precedes."""
        replica = strategy._nvrx_replica()
        return self.memory.committing(
            optimizer, lambda ending: self._trainer_state(SavePoint.VOTE, replica, ending)
        )  # fmt: skip

    def batch_ended(self, strategy: Any, *, validates: bool) -> None:
        """Keep the state of the Trainer: a validation is about to begin, or the next batch to be fetched."""
        point, stage = (
            (SavePoint.VALIDATION, BatchStage.VALIDATION) if validates else (SavePoint.NEXT_BATCH, BatchStage.ENDED)
        )
        self.memory.reached(stage, lambda: self._trainer_state(point, strategy._nvrx_replica()))

    def set_up(self) -> None:
        """Prepare to keep model and optimizers in memory."""
        self.memory.set_up()

    def take_over(self) -> None:
        """Take parameters, optimizer state and random numbers over from memory."""
        self.memory.take_over()
        taken = self.memory.resumed
        assert taken is not None
        # A lost rank has had no random state of its own: it has that of the vote, from the ranks that have voted.
        random = RandomState.now() if taken.state is None or taken.ending is not None else taken.state.random
        self._random = random
        self._state = None if taken.state is None else replace(taken.state, random=random)

    def loaded(self, checkpoint: dict[str, Any], replicas: int) -> None:
        """Take the position from a checkpoint."""
        written = checkpoint.get(CHECKPOINT_KEY)
        self._resumed, self._data = written if isinstance(written, dict) else {}, None
        self._trainer.fit_loop.nvrx_saved_at = SavePoint(self._resumed.get("saved_at", SavePoint.ELSEWHERE.value))
        self._trainer.fit_loop.nvrx_accumulated = self._resumed.get("settings", {}).get("accumulated")
        if self._own and self.attempt > 0:
            self._rows.go_back(self._resumed.get("logged"))
        self._snapshot.keep_time(checkpoint)
        saves, step = self._resumed.get("saves", {}) if self._own else {}, int(checkpoint.get("global_step", 0))
        taken = self.memory.resumed
        later = None
        if (choice := self.memory.choice) is not None:  # until the batch has ended, hooks that save are called again
            later = self.saved.later_than(step if choice.stage is BatchStage.ENDED else step - 1)
        use_checkpoint_saves(self._trainer, step, saves, later)
        if taken is not None:
            if taken.state is None:
                log.warning(
                    "this rank takes the place of a lost one: the metrics of the epoch that the lost one had "
                    "accumulated begin anew on it"
                )
            self._trainer.fit_loop.epoch_loop.nvrx_ending = taken.ending
            self._workers.go_on(taken.workers)
        elif self._resumed.get("world_size") == replicas:
            expected = self._own and self.attempt > 0
            self._state = self._rank_states.of(self._resumed.get("token"), expected=expected)
            self._random = self._state.random if self._state is not None else None
            self._workers.resume(self._resumed.get("token"))

    def workers_made(self, loader: Any, replicas: int, rank: int) -> None:
        """Let the workers of a training loader go on with their random numbers."""
        if self._resumed is not None and not self._trainer.fit_loop.nvrx_is_restored:
            detach(loader)  # it is set up for its length alone
            return
        epochs = self._trainer.fit_loop.epoch_progress.current
        self._workers.follow(loader, lambda: epochs.processed, self.data(replicas, rank).resumed(loader))

    def train_loader_made(self, loader: Any, replicas: int, rank: int) -> None:
        """Resume the training data, and restore the random state before a new epoch, whose loader draws a seed.

        A loader may be set up for its length alone, before the counters are those of the checkpoint.
        """
        trainer = self._trainer
        resuming = self._resumed is not None and trainer.fit_loop.nvrx_is_restored
        data = self.data(replicas, rank)
        data.prepare(loader, trainer, setup=trainer.fit_loop.nvrx_setups, resuming=resuming)
        drawn = (self._resumed or {}).get("drawn", False)
        if resuming and not drawn and begins_epoch(trainer, self._position(), exactly=self._own):
            self._restore_random()

    def train_started(self) -> None:
        """Restore random state and metrics, and log the restart: the attempt is about to train."""
        self.memory.started()
        if self.memory.refusal not in ("", self._refused):
            self._refused = self.memory.refusal
            if not self.memory.by_default and self._trainer.is_global_zero:
                self._log.info("a restart will go on from a checkpoint, and not from memory: %s", self._refused)
        self._restore_random()
        self._rows.begin_training()
        finalize_whole(self._trainer, self._family)
        self._warnings.unsynchronized = unsynchronized(self._trainer, self._family)
        self._settings, self._metrics = EpochSettings(self._trainer), metrics_in(self._trainer.lightning_module)
        rates = self._go_on(self._resumed or {}) if self._own else None
        if self._own and self._state is not None and is_over(self._trainer):
            self._state.random.restore()  # the loader has drawn a seed for an epoch that does not begin
        self._goes_on = True
        if self.attempt > 0:
            begin_epoch(self._trainer)
            self._log_restart()
            self._containers.begin()
            if (taken := self.memory.resumed) is not None:
                left = self._containers.differing(taken.containers)
            else:
                left = self._containers.compare((self._resumed or {}).get("token", "") if self._own else None)
            self._warnings.restored(rates, left)
            return
        self._containers.begin()
        if not self._own and not is_of_search(self._trainer.ckpt_path):
            self._users_checkpoint = self._trainer.ckpt_path  # what "last" or "best" stood for

    def _go_on(self, resumed: dict[str, Any]) -> tuple[float, float] | None:
        """Restore the state that nvrx has added to a checkpoint of this job.

        Returns:
            The learning rates of this rank and of the checkpoint, if they differ.
        """
        rates = None
        use_shown_metrics(self._trainer, resumed)
        self._trainer.should_stop = self._had_stopped(resumed)
        if self._state is not None:
            self._state.metrics.restore(self._trainer)
            rates = self._state.monitors.restore(self._trainer)
        go_on_averaging(self._trainer, self._family)
        finish_epoch(self._trainer, has_metrics=self._state is not None)
        if "settings" in resumed:
            self._trainer.accumulate_grad_batches = resumed["settings"]["accumulated"]
            if self.attempt > 0:
                use_epoch_settings(self._trainer, resumed["settings"])
        return rates

    def _had_stopped(self, resumed: dict[str, Any]) -> bool:
        """Return whether the fit had decided to end (`should_stop`), in a hook that is not called again.

        A rank of the attempt before may have set it after the save, in the hooks of the same batch.
        """
        done = self._trainer.fit_loop.epoch_loop.batch_progress.total.processed
        return bool(resumed.get("should_stop")) or (self._stopped_after is not None and self._stopped_after <= done)

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

    def batch_started(self, batch: Any) -> None:
        """Keep the batch for a vote, and report progress.

        Only the limit on restarts without progress uses it; it does not count as a ping.
        """
        self.memory.batch_begins(batch)
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
