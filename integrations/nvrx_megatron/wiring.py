"""Progress reports from Megatron-LM's training loop.

Megatron-LM calls `ft_integration` around each training and evaluation step, whether fault tolerance is enabled or not;
it never calls `CallWrapper.ping()` or `progress()`. Once a function pings, the timeouts apply to its pings, so they are
suspended during operations that take longer than a step. Megatron-LM itself opens the sections of a rank monitor; with
nvrx's client, opening and closing an empty section costs a few memory writes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from nvrx_core.inprocess.wrap import current_call
from nvrx_megatron import internals
from nvrx_megatron.installed import Piece, mentions, replace_once

__all__ = ["wire"]

LONG: Final = {
    "evaluate": "an evaluation",
    "save_checkpoint": "a save",
    "maybe_finalize_async_save": "the end of a background save",
}
"""Functions in the training loop's module that may take longer than the timeouts of a step."""
_STEP_END: Final = "on_training_step_end"


def wire() -> list[Piece]:
    """Report progress after each training step, and suspend pings during evaluations and saves.

    Call it before the script runs; a second call changes nothing.

    Returns:
        What is installed, and what is not.
    """
    training = importlib.import_module("megatron.training.training")
    home = internals.loaded("megatron.training.ft_integration")
    reports = hasattr(home, _STEP_END) and mentions(training, _STEP_END)
    if reports:
        replace_once(home, _STEP_END, _reporting)
    missing = "" if reports else f"megatron.training.ft_integration.{_STEP_END}, called by megatron.training.training"
    without = "steps are no progress: a loop that stands still is no hang, and three equal faults end the job"
    pieces = [Piece("steps are progress", without, missing)]
    for name, what in LONG.items():
        found = hasattr(training, name) and mentions(training, name)
        if found:
            replace_once(training, name, _unhurried)
        missing = "" if found else f"megatron.training.training.{name}"
        exceeds = f"{what} may exceed --inprocess-soft-timeout"
        pieces.append(Piece(exceeds, f"{what} that exceeds --inprocess-soft-timeout is a hang", missing))
    return pieces


def _reporting(original: Callable[..., Any]) -> Callable[..., Any]:
    def reported(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        call = current_call()
        if call is not None:
            from megatron.training import get_args

            call.ping()
            call.progress(get_args().curr_iteration, watched=False)
        return result

    return reported


def _unhurried(original: Callable[..., Any]) -> Callable[..., Any]:
    def unhurried(*args: Any, **kwargs: Any) -> Any:
        call = current_call()
        if call is None:
            return original(*args, **kwargs)
        with call.suspend_ping():
            return original(*args, **kwargs)

    return unhurried
