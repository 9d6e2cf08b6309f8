"""The plug-in that runs in the main thread after an interruption, before the health check."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from nvrx_core.errors import require
from nvrx_core.process.bounded import call_bounded
from nvrx_core.rank_assignment.base import FrozenState

__all__ = ["Finalize", "ThreadedFinalize"]


class Finalize(ABC):
    """A plug-in that restores the process to a state in which the wrapped function can start again."""

    @abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Finalize.

        Raises:
            Exception: any exception, to let this rank exit.
        """


class ThreadedFinalize(Finalize):
    """A finalizer that runs a function in a thread, on the caller's CUDA device if it has one, with a timeout.

    Args:
        timeout: how long to wait.
        fn: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        ValueError: when the timeout is not positive.
    """

    def __init__(
        self,
        timeout: timedelta,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        require(timeout > timedelta(0), "timeout", timeout, "positive")
        self.timeout, self.fn = timeout, fn
        self.args, self.kwargs = tuple(args), dict(kwargs or {})

    def __call__(self, state: FrozenState) -> FrozenState:
        """Run the function.

        Raises:
            TimeoutError: nvrx's, when the function does not return in time; its thread keeps running.
            BaseException: the exception of the function.
        """
        name = f"{type(self).__name__}({getattr(self.fn, '__qualname__', self.fn)})"
        call_bounded(functools.partial(self.fn, *self.args, **self.kwargs), self.timeout, name)
        return state
