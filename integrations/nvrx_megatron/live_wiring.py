"""Megatron-LM's training loop on the memory of its ranks: where it would load a checkpoint, and what it counts.

Its functions are replaced in the module that calls them, before the script runs. A step is what `train_step` does; what
the loop does behind it (its log, an evaluation, a save) is done once more when a fault has interrupted it on a rank.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from nvrx_core.inprocess.restart_record import last_restart
from nvrx_core.inprocess.wrap import current_call
from nvrx_megatron import internals
from nvrx_megatron.arguments import inprocess_arguments
from nvrx_megatron.installed import Piece, replace_once
from nvrx_megatron.live_refusals import refused_arguments
from nvrx_megatron.live_state import MegatronLiveState

__all__ = ["wire_live_state"]

Failure = tuple[str, str, str, int | None]
"""The type of an exception or the kind of an interruption, the user's line, the one that raised, the highest step."""
_PLAIN: Final = (type(None), bool, int, float, str)


def wire_live_state(args: Any) -> list[Piece]:
    """Let a restart go on from memory, unless the arguments have `--nvrx-live-state off`.

    Call it before the script runs. Without `on`, nothing is installed where the arguments or the tree do not allow it.

    Returns:
        What is installed, and what is not.
    """
    live = MegatronLiveState(args)
    if not live.is_on:
        return []
    training = importlib.import_module("megatron.training.training")
    gone, besides = ", ".join(internals.loop_gone(training)), _kept_besides(training)
    if inprocess_arguments(args).live_state == "auto":
        missing = f"Megatron-LM's loop does not have {gone}" if gone else ""
        if reason := refused_arguments(args) or missing or besides:
            return [Piece(f"a restart goes on from a checkpoint, not from memory ({reason})", "")]
    if not gone:
        _Loop(live, training, besides).install()
    return [Piece("a restart goes on from memory", "a restart goes on from a checkpoint", gone)]


def _kept_besides(training: Any) -> str:
    """Return why a checkpoint of this Megatron-LM has what memory does not; "" if it has not."""
    besides = ", ".join(internals.kept_besides(training))
    return f"a checkpoint of this Megatron-LM has {besides} besides, which is not kept in memory" if besides else ""


class _Counters:
    """What Megatron-LM counts, in its arguments, its schedule and its state machine."""

    def __init__(self, training: Any, scheduler: Any, operations: _Operations) -> None:
        self._training, self._scheduler, self._operations = training, scheduler, operations
        self.iteration = int(self._args().iteration)

    def _args(self) -> Any:
        return self._training.get_args()

    def state_dict(self) -> dict[str, Any]:
        args, machine = self._args(), self._training.get_rerun_state_machine()
        scheduler = {name: value for name, value in vars(self._scheduler).items() if type(value) in _PLAIN}
        return {
            "iteration": self.iteration, **{name: getattr(args, name) for name in internals.COUNTED_SAMPLES},
            "schedule": scheduler.pop("num_steps"), "scheduler": scheduler,
            "operations": [self._operations.iteration, self._operations.total, self._operations.last],
            "losses": {name: dict(getattr(machine, name, {})) for name in internals.LOSS_MEMORY},
            "validates": getattr(machine, internals.VALIDATES, None),
        }  # fmt: skip

    def after_step(self, updated: bool) -> dict[str, Any]:
        args, training = self._args(), self._training
        batch = training.get_num_microbatches() * args.micro_batch_size * args.data_parallel_size
        skipped = training.get_current_global_batch_size() - training.get_current_running_global_batch_size()
        return {
            "iteration": self.iteration + 1,
            "consumed_train_samples": args.consumed_train_samples + batch,
            "skipped_train_samples": args.skipped_train_samples + skipped,
            "schedule": self._scheduler.num_steps + (batch if updated else 0),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        args, machine = self._args(), self._training.get_rerun_state_machine()
        self.iteration = args.iteration = state["iteration"]
        for name in internals.COUNTED_SAMPLES:
            setattr(args, name, state[name])
        self._training.update_num_microbatches(args.consumed_train_samples, verbose=False)
        vars(self._scheduler).update(state["scheduler"], num_steps=state["schedule"])
        self._scheduler.step(increment=0)
        counted, total, last = state["operations"]
        args.num_floating_point_operations_so_far = total + (last if counted < self.iteration else 0)
        if state["validates"] is not None:
            setattr(machine, internals.VALIDATES, state["validates"])
        for name, values in state["losses"].items():
            if hasattr(machine, name):
                getattr(machine, name).clear()
                getattr(machine, name).update(values)


class _Operations:
    """How many floating point operations the loop has counted: in total, after which iteration, in the last one."""

    def __init__(self) -> None:
        self.iteration = 0
        self.total = self.last = 0.0

    def note(self, iteration: int, total: float) -> None:
        self.last = total - self.total if iteration == self.iteration + 1 else 0.0
        self.iteration, self.total = iteration, total


class _Loop:
    """The replaced functions of the training loop.

    Args:
        live: what they keep in memory.
        training: the module of the loop.
        besides: why a checkpoint has what memory does not; "" if it has not.
    """

    def __init__(self, live: MegatronLiveState, training: Any, besides: str) -> None:
        self._live, self._training, self._besides = live, training, besides
        self._counters: _Counters | None = None
        self._operations = _Operations()
        self._is_setting_up = self._has_tried = self._resumed = False
        self._set_up_in: Any = None
        self._used_memory = False  # in the last iteration that has set up a training
        self._failed: Failure | None = None
        self._losses: dict[str, Any] = {}
        self._kept_losses: dict[str, Any] | None = None
        self._of_checkpoints: dict[str, Any] = {}

    def install(self) -> None:
        """Replace the functions; a second call changes nothing."""
        for name in internals.LOOP:
            replace_once(self._training, name, getattr(self, f"_{name}"), mark="__nvrx_live__")
        self._of_checkpoints = {name: getattr(self._training, name, None) for name in internals.CHECKPOINT_FUNCTIONS}

    def _kept_by_script(self) -> str:
        """Return why the script may keep a state of its own beside each checkpoint; "" if nothing says so."""
        now = ((name, known, getattr(self._training, name, None)) for name, known in self._of_checkpoints.items())
        names = " and ".join(name for name, known, found in now if found != known)
        return f"the script has replaced {names}, and may keep a state of its own with checkpoints" if names else ""

    def _setup_model_and_optimizer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def setup(*args: Any, **kwargs: Any) -> Any:
            call = current_call()
            if call is not None and call is self._set_up_in and self._counters is not None:
                self._live.give_up("the script sets up more than one training", alone=False)
            self._set_up_in = call
            self._is_setting_up, self._has_tried, self._resumed = True, False, False
            try:
                model, optimizer, scheduler, *_ = made = original(*args, **kwargs)
            finally:
                self._is_setting_up = False
            if not self._has_tried:  # nothing was to be loaded
                self._resume(model, optimizer, scheduler)
            if not self._resumed:
                given = self._training.get_args()
                self._operations.__init__()  # type: ignore[misc]
                self._operations.note(given.iteration, getattr(given, "num_floating_point_operations_so_far", 0.0))
                self._losses, self._kept_losses = {}, None
                if self._counters is not None:
                    self._counters.iteration = given.iteration
                self._live.start(given.iteration)
            return made

        return setup

    def _load_checkpoint(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def load(*args: Any, **kwargs: Any) -> Any:
            if self._is_setting_up and not self._has_tried:
                model, optimizer, scheduler, *_ = signature.bind(*args, **kwargs).arguments.values()
                self._resume(model, optimizer, scheduler)
                if self._resumed:
                    given = self._training.get_args()
                    return given.iteration, given.num_floating_point_operations_so_far
            return original(*args, **kwargs)

        return load

    def _resume(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        self._has_tried, self._counters = True, None
        given = self._training.get_args()
        if gone := internals.arguments_gone_for_live_state(given):
            refused = f"Megatron-LM has no argument {', '.join(gone)}"
        else:
            refused = refused_arguments(given) or self._besides or self._kept_by_script()
        if not refused and type(scheduler).__name__ != "OptimizerParamScheduler":
            refused = f"it is not known what {type(scheduler).__name__} keeps"
        if not refused:
            given.iteration = getattr(given, "iteration", 0)
            self._counters = _Counters(self._training, scheduler, self._operations)
        distrusted = self._distrusted(getattr(given, "load", None))
        first = self._live.resume(model, optimizer, self._counters, refused=refused, distrusted=distrusted)
        self._resumed = self._used_memory = first is not None
        if first is not None:
            assert self._counters is not None
            assert given.iteration == first, (given.iteration, first)
            self._operations.iteration, self._operations.total = first, given.num_floating_point_operations_so_far
            self._kept_losses = self._losses

    def _distrusted(self, folder: str | None) -> str:
        """Return why memory is not used now: two failures alike, of which the second has begun with what is in memory.

        A third one would end the job (`restart.NO_PROGRESS_LIMIT`); a checkpoint may be without what has failed.
        """
        restart, before, self._failed = last_restart(), self._failed, None
        if restart is None or (cause := restart.cause) is None or cause.initial_rank in restart.lost:
            return ""
        failed = cause.error_type or cause.interruption, cause.origin, cause.raised_at, restart.highest_step
        self._failed = failed
        if failed != before or not self._used_memory or not folder:
            return ""
        if not (Path(folder) / internals.TRACKER).is_file():  # the initial weights would be all there is
            return ""
        return f"{failed[0]} has come up twice at the same place"

    def _build_train_valid_test_data_loaders(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Let the loaders begin at the samples that are kept: behind iteration 0 they compute those of validation."""

        def build(*args: Any, **kwargs: Any) -> Any:
            given = self._training.get_args()
            iteration, given.iteration = given.iteration, 0 if self._resumed else given.iteration
            try:
                return original(*args, **kwargs)
            finally:
                given.iteration = iteration

        return build

    def _train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def train(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            reads = given.get("process_non_loss_data_func") is not None and given.get("non_loss_data_func") is None
            if reads and self._counters is not None:
                reason = "process_non_loss_data_func has validation data read that are not counted"
                self._live.give_up(reason, alone=False)
            if self._resumed and self._live.is_behind_step:
                self._finish_step(given)
            return original(*args, **kwargs)

        return train

    def _finish_step(self, of_train: Mapping[str, Any]) -> None:
        """Do what the loop does behind a step, and a fault has interrupted; its log line is lost.

        Args:
            of_train: the arguments of `train`, by name.
        """
        model = of_train["model"]
        training, given = self._training, self._training.get_args()
        iteration, first = given.iteration, getattr(given, "start_eval_at_iter", None) or 0
        self._live.restore_random_numbers()
        if given.do_valid and given.eval_interval and iteration >= first and iteration % given.eval_interval == 0:
            training.evaluate_and_print_results(
                f"iteration {iteration}", of_train["forward_step_func"], of_train["valid_data_iterator"], model,
                iteration, of_train["process_non_loss_data_func"], of_train["config"], verbose=False,
                write_to_tensorboard=True, non_loss_data_func=of_train["non_loss_data_func"],
            )  # fmt: skip
        if _is_saved(given) and not (given.exit_interval and iteration % given.exit_interval == 0):
            return
        operations, interval = given.num_floating_point_operations_so_far, training.get_timers()("interval-time", 0)
        interval.start()  # a save stops it, and starts it again
        ends = training.checkpoint_and_decide_exit(
            model, of_train["optimizer"], of_train["opt_param_scheduler"], iteration, operations,
            of_train["checkpointing_context"], of_train["train_data_iterator"],
        )  # fmt: skip
        interval.stop()
        if ends:
            training.maybe_finalize_async_save(blocking=True)
            sys.exit()

    def _train_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def train_step(*args: Any, **kwargs: Any) -> Any:
            iteration = getattr(self._training.get_args(), "curr_iteration", None)  # another loop may not set it
            if self._counters is not None and iteration is not None:
                self._counters.iteration = iteration
                self._live.begin(iteration)
            return original(*args, **kwargs)

        return train_step

    def _training_log(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Add to the losses that the interrupted loop has added up since its last line."""

        def training_log(loss_dict: Any, total_loss_dict: Any, *args: Any, **kwargs: Any) -> Any:
            if self._live.refusal:
                return original(loss_dict, total_loss_dict, *args, **kwargs)
            if self._kept_losses is not None:
                total_loss_dict.update(self._kept_losses)
                self._kept_losses = None
            if self._resumed and "is_first_iteration" in kwargs:  # else the next line has this step once more
                kwargs["is_first_iteration"] = False
            result = original(loss_dict, total_loss_dict, *args, **kwargs)
            self._losses = {
                name: value.clone() if hasattr(value, "clone") else value for name, value in total_loss_dict.items()
            }
            return result

        return training_log

    def _checkpoint_and_decide_exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def decide(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            self._operations.note(given["iteration"], given["num_floating_point_operations_so_far"])
            return original(*args, **kwargs)

        return decide


def _is_saved(args: Any) -> bool:
    """Return whether the newest checkpoint is that of this iteration: it is not written a second time."""
    told: list[Any] = [None]
    if args.save and dist.get_rank() == 0:
        tracker = Path(args.save) / internals.TRACKER
        told = [tracker.is_file() and tracker.read_text().strip() == str(args.iteration)]
    dist.broadcast_object_list(told, 0)
    return bool(told[0])
