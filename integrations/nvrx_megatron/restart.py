"""In-process restart of a training function on megatron-core, configured by Megatron's flags."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, ParamSpec, TypeVar

from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.health_check import CudaHealthCheck
from nvrx_core.inprocess.initialize import RetryController
from nvrx_core.inprocess.nested_restarter import (
    NestedRestarterAborted,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
)
from nvrx_core.inprocess.wrap import Wrapper
from nvrx_megatron.abort import MegatronAbort
from nvrx_megatron.arguments import InprocessArguments, inprocess_arguments
from nvrx_megatron.finalize import MegatronFinalize
from nvrx_megatron.installed import announce
from nvrx_megatron.internals import CORE_STATE
from nvrx_megatron.ranks import megatron_rank_assignment
from nvrx_megatron.state import teardown_pieces
from nvrx_megatron.writers import observe_saves

__all__ = ["inprocess_restart", "wrapper_for"]

NO_PROGRESS_LIMIT: Final = 3
"""Equal consecutive failures without a higher step after which the job ends."""
_CUDA: Final = timedelta(seconds=10)
_SAVES: Final = "megatron.core.dist_checkpointing.strategies.filesystem_async"

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def inprocess_restart(train: Callable[..., Result], args: Any) -> Callable[..., Result]:
    """Return `train` wrapped for in-process restart, or `train` itself without `--inprocess-restart`.

    `train` is called in each iteration, on the active ranks. It creates the process groups by
    `init_process_group` and `initialize_model_parallel`, builds the model, and loads the newest checkpoint. A parameter
    named `call_wrapper`, or annotated with `CallWrapper`, gets the handle of the iteration. Call this before the first
    `initialize_model_parallel`: a restart restores the state that megatron-core has at this moment.

    Args:
        train: the training function.
        args: the arguments of Megatron-LM's parser, or of one with `add_arguments`.

    Raises:
        ValueError: for a value that violates its rule; nothing is started.
        ModuleNotFoundError: without megatron-core.
    """
    given = inprocess_arguments(args)
    if not given.restart:
        return train
    importlib.import_module("megatron.core")
    for module in CORE_STATE:
        with contextlib.suppress(ModuleNotFoundError):  # which is announced
            importlib.import_module(module)
    importlib.import_module("megatron.core.utils")
    wrapper = wrapper_for(given)
    announce([*teardown_pieces(), *observe_saves()])
    return wrapper(_with_ordinary_errors(train))


def wrapper_for(given: InprocessArguments) -> Wrapper:
    """Return the wrapper configured by the arguments.

    Raises:
        ValueError: for a value that violates its rule.
    """
    importlib.import_module(_SAVES)
    observe_saves()
    active = given.active_world_size
    retries = RetryController(max_iterations=given.max_iterations, min_world_size=active, min_active_world_size=active)
    return Wrapper(
        initialize=Compose(retries, NestedRestarterHandlingCompleted()),
        abort=MegatronAbort(),
        finalize=MegatronFinalize(_CUDA, given.empty_cuda_cache),
        health_check=CudaHealthCheck(_CUDA),
        rank_assignment=megatron_rank_assignment(given),
        completion=NestedRestarterFinalized(),
        terminate=NestedRestarterAborted(),
        no_progress_limit=NO_PROGRESS_LIMIT,
        **_times(given),
    )


def _times(given: InprocessArguments) -> dict[str, Any]:
    names = (
        "monitor_thread_interval", "monitor_process_interval", "progress_watchdog_interval", "heartbeat_interval",
        "soft_timeout", "hard_timeout", "heartbeat_timeout", "barrier_timeout", "completion_timeout",
        "last_call_wait", "termination_grace_time",
    )  # fmt: skip
    return {name: timedelta(seconds=getattr(given, name)) for name in names}


def _with_ordinary_errors(train: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Turn a failed save into an ordinary fault.

    torch's `CheckpointException` is not an `Exception` and would end the rank; all ranks raise it if one has failed.
    """

    @functools.wraps(train)
    def trained(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        from torch.distributed.checkpoint.api import CheckpointException

        try:
            return train(*args, **kwargs)
        except CheckpointException as error:
            raise RuntimeError(f"checkpoint: {error}") from error

    return trained
