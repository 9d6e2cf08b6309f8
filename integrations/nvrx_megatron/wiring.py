"""Progress reports from Megatron-LM's training loop.

Megatron-LM calls `ft_integration` around each training and evaluation step, whether fault tolerance is enabled or not;
it never calls `CallWrapper.ping()` or `progress()`. Once a function pings, the timeouts apply to its pings, so they are
suspended during operations that take longer than a step. Megatron-LM itself opens the sections of a rank monitor; with
nvrx's client, opening and closing an empty section costs a few memory writes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from nvrx_core.inprocess.wrap import current_call

__all__ = ["wire"]

LONG: Final = ("evaluate", "save_checkpoint", "maybe_finalize_async_save")
"""Functions in the training loop's module that may take longer than the timeouts of a step."""


def wire() -> None:
    """Report progress after each training step, and suspend pings during evaluations and saves.

    Call it before the script runs; a second call does nothing.
    """
    from megatron.training import ft_integration, training

    _replace(ft_integration, "on_training_step_end", _reporting)
    for name in LONG:
        if hasattr(training, name):
            _replace(training, name, _unhurried)


def _replace(home: Any, name: str, wired: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(home, name)
    if not hasattr(original, "__nvrx__"):
        replacement: Any = functools.wraps(original)(wired(original))
        replacement.__nvrx__ = True
        setattr(home, name, replacement)


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
