"""The callback that reports the progress of a training to the rank monitor and to the wrapped call."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from nvrx_core.fault_tolerance import WorkloadAction, WorkloadControlRequest
from nvrx_core.inprocess.call.user_errors import plainly, print_shortened
from nvrx_core.inprocess.groups.torch_groups import undo_exception_hooks
from nvrx_core.settings import environment
from nvrx_lightning import callback_base
from nvrx_lightning.monitoring import control, files
from nvrx_lightning.monitoring.connection import MonitorConnection
from nvrx_lightning.monitoring.ending import Ending
from nvrx_lightning.monitoring.faults import SimulatedFaults
from nvrx_lightning.monitoring.learning import Learner
from nvrx_lightning.monitoring.phases import PhaseReports
from nvrx_lightning.monitoring.training import Training
from nvrx_lightning.options import refuse_unknown

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ["FaultToleranceCallback", "FaultToleranceSectionsCallback"]


class FaultToleranceCallback(PhaseReports):
    """Heartbeats, sections, learned timeouts and the finished flag of `Trainer.fit`.

    Under `ft_launcher`, or after `start_local_monitor()`, the callback reports to the rank monitor. In a strategy with
    in-process restart it reports to the wrapped call. In a run with neither it does nothing. It does not act on
    `validate`, `test` and `predict`.

    Args:
        autoresume: whether to write the finished flag when the training has completed: to the file that
            FAULT_TOL_FINISHED_FLAG_FILE names, else, if this is True, to `ft_finished` in `exp_dir`. None: if the
            variable is set.
        calculate_timeouts: None: learn the timeouts that are not configured. True: learn all. False: learn none.
        exp_dir: folder of the learned timeouts, `ft_timeouts.json`, for all jobs of the training; None: the `dirpath`
            of the first checkpoint callback, if it was given one, else the trainer's `default_root_dir`.
        minimum_timeout: seconds from which a learned timeout is enforced; a shorter one counts as this. None: the
            setting `min_learned_timeout`, 60 s by default.
        simulated_fault_params: faults for tests, as `SimulatedFaults.of` takes them.
        exc_handling_policy: called with an exception that ends the training; returns the request to send to the
            launcher.
        logger_name: the logger to write to; None: a child of Lightning's logger.

    Raises:
        ValueError: when `minimum_timeout` is not positive, or the faults cannot be parsed.
    """

    heartbeats: ClassVar[bool] = True
    """Whether heartbeats are sent, besides sections."""

    if not TYPE_CHECKING:  # checkers know the parameters

        @plainly
        def __new__(cls, *args: object, **kwargs: object) -> Self:
            """Refuse an unknown parameter with the name that is most like it."""
            parameters = inspect.signature(cls.__init__).parameters
            if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
                refuse_unknown(cls.__name__, [name for name in parameters if name != "self"], kwargs)
            return super().__new__(cls)

    def __init__(
        self,
        autoresume: bool | None = None,
        calculate_timeouts: bool | None = None,
        *,
        exp_dir: str | os.PathLike[str] | None = None,
        minimum_timeout: float | None = None,
        simulated_fault_params: Any = None,
        exc_handling_policy: Callable[[BaseException], WorkloadControlRequest] | None = None,
        logger_name: str | None = None,
    ) -> None:
        super().__init__()
        if minimum_timeout is not None and not (isinstance(minimum_timeout, Real) and minimum_timeout > 0):
            raise ValueError(f"minimum_timeout: {minimum_timeout!r} is no time; write seconds above 0, as in 30.0")
        self._autoresume, self._calculates = autoresume, calculate_timeouts
        self._exp_dir, self._least = exp_dir, minimum_timeout
        self._faults = SimulatedFaults.of(simulated_fault_params)
        self._policy, self._logger_name = exc_handling_policy, logger_name
        self._connection: MonitorConnection | None = None
        self._folder: Path | None = None
        self._returned = self._is_final = self._stays_connected = self._is_told = False

    def connect(self, trainer: Trainer) -> None:
        """Connect to the rank monitor as a wrapped call of `fit` begins, and stay connected until `disconnect`."""
        if not self._is_first(trainer):
            return
        self._open(trainer)
        self._stays_connected = True

    def disconnect(self, trainer: Trainer, *, completed: bool) -> None:
        """Close the connection; write the finished flag if all ranks have completed the call."""
        if completed and self._is_final:
            self._write_flag(trainer)
        self._stays_connected = False
        self._end()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Connect to the rank monitor and start to report."""
        if stage != "fit" or not self._is_first(trainer):
            return
        self._returned = self._is_final = False
        self._pause()
        self._open(trainer)
        self._begin(trainer)

    def _is_first(self, trainer: Trainer) -> bool:
        """Whether this callback is the first of its kind: only one reports, and a second one is warned of once."""
        all_of_them = [each for each in trainer.callbacks if isinstance(each, FaultToleranceCallback)]  # type: ignore[attr-defined]
        if all_of_them[0] is self:
            return True
        if not self._is_told and trainer.is_global_zero:
            self._is_told = True
            self._log(trainer).warning(
                "%d callbacks report to the rank monitor; only the first one does now: remove this %s from the trainer",
                len(all_of_them),
                type(self).__name__,
            )
        return False

    def _open(self, trainer: Trainer) -> None:
        if self._connection is None:
            self._connection = MonitorConnection.open(self._log(trainer), self._least)

    def _begin(self, trainer: Trainer) -> None:
        client = None if self._connection is None else self._connection.client
        call, log = _current_call(), self._log(trainer)
        self._folder = self._folder or files.folder_for(trainer, self._exp_dir)
        if client is not None or call is not None:
            training = self._training = Training(trainer, client, call, heartbeats=self.heartbeats, log=log)
            training.begin(self._faults)
        elif trainer.is_global_zero:
            log.info("no rank monitor and no in-process restart: %s does nothing in this run", type(self).__name__)
        if self._calculates is not False:
            path = None if self._folder is None else self._folder / files.TIMEOUTS
            learner = Learner.begin(trainer, client, path, learns_all=bool(self._calculates), log=log)
            if self._training is not None:
                self._training.learner = learner

    def on_fit_end(self, *_: Any) -> None:
        """Note that `fit` has ended normally."""
        self._returned = True

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Report the exception to the launcher, unless the training restarts in this process."""
        if trainer.state.fn != "fit" or not self._is_first(trainer):
            return
        if self._stays_connected or _current_call() is not None:  # also where `setup` was not reached
            self._pause()
            return
        if environment.launcher_socket() is not None:
            control.report(exception)
            undo_exception_hooks()
            print_shortened(exception, f"[rank{trainer.global_rank}]: ")
        log = self._log(trainer)
        request = control.consult(self._policy, exception, log)
        if request is not None:
            if request.action is WorkloadAction.ShutdownWorkload:
                self._write_flag(trainer)
            control.ask(request, log)
        self._end()

    def on_restart(self, trainer: Trainer, pl_module: LightningModule, attempt: int) -> None:
        """Discard the interrupted iteration; `setup` begins the next one."""
        self._pause()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop reporting; write the finished flag, or leave it to the end of a wrapped call, which may restart."""
        if stage != "fit":
            return
        self._is_final = trainer.is_global_zero and self._ending(trainer).is_final()
        if self._is_final and not self._stays_connected:
            self._write_flag(trainer)
        self._end()

    def _ending(self, trainer: Trainer) -> Ending:
        return Ending(
            returned=self._returned,
            steps=trainer.global_step,
            max_steps=trainer.max_steps,
            epochs=trainer.current_epoch,
            max_epochs=trainer.max_epochs,
            terminated=trainer.received_sigterm,
            trial=bool(trainer.fast_dev_run),  # type: ignore[attr-defined]
        )

    def _write_flag(self, trainer: Trainer) -> None:
        path = self._flag()
        if path is not None:
            try:
                files.touch(path)
            except OSError as error:
                self._log(trainer).error("the finished flag is not written: %s", error)

    def _flag(self) -> Path | None:
        if self._autoresume is False:
            return None
        name = "FAULT_TOL_FINISHED_FLAG_FILE"
        if named := environment.variables(name).get(name):
            return Path(named)
        in_use = self._autoresume and self._connection is not None and self._folder is not None
        return self._folder / files.FINISHED if in_use and self._folder is not None else None

    def _pause(self) -> None:
        if self._training is not None:
            training, self._training = self._training, None
            training.end()

    def _end(self) -> None:
        self._pause()
        if self._connection is not None and not self._stays_connected:
            connection, self._connection = self._connection, None
            connection.close()

    def _log(self, trainer: Trainer) -> logging.Logger:
        return callback_base.logger_of(trainer) if self._logger_name is None else logging.getLogger(self._logger_name)


class FaultToleranceSectionsCallback(FaultToleranceCallback):
    """A `FaultToleranceCallback` that reports sections only and sends no heartbeats."""

    heartbeats: ClassVar[bool] = False


def _current_call() -> Any:
    from nvrx_core.inprocess import current_call

    return current_call()
