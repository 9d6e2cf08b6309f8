"""Reset of a rank from an interrupted iteration of Megatron to its state before the first iteration."""

from __future__ import annotations

import signal
import sys
from datetime import timedelta
from typing import Any, Final

from nvrx_core.inprocess.finalize import Finalize
from nvrx_core.process.bounded import call_bounded, cuda_device
from nvrx_core.rank_assignment.base import FrozenState
from nvrx_megatron.script_objects import drop_objects
from nvrx_megatron.state import GlobalState, attempt, drop_state
from nvrx_megatron.writers import forget_saves

__all__ = ["MegatronFinalize"]

_HANDLED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class MegatronFinalize(Finalize):
    """A finalizer that destroys Megatron's global state; it works with and without CUDA.

    It is created before the first iteration, and captures the state at that moment: the plain values of Megatron's
        global variables, and the signal handlers. When called, it drops the background saves, closes the client of the
        rank monitor, restores the captured state and, last, releases cached GPU memory, when nothing refers to it.

    Args:
        timeout: how long destroying the state may take if CUDA is in use; without CUDA it cannot hang.
        empty_cuda_cache: release cached GPU memory after the state that refers to it is destroyed.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=10), empty_cuda_cache: bool = False) -> None:
        self.timeout, self.empty_cuda_cache = timeout, empty_cuda_cache
        self._before = GlobalState.capture()
        self._handlers = {number: signal.getsignal(number) for number in _HANDLED}

    def __call__(self, state: FrozenState) -> FrozenState:
        """Destroy the state.

        Raises:
            TimeoutError: nvrx's, if it takes too long while CUDA is in use.
        """
        attempt("dropping background saves", forget_saves)
        attempt("dropping the script's objects", drop_objects)
        self._drop()
        attempt("signal handlers", self._restore_handlers)
        if self.empty_cuda_cache and cuda_device() is not None:
            call_bounded(sys.modules["torch"].cuda.empty_cache, self.timeout, "empty_cache")
        return state

    def _drop(self) -> None:
        if cuda_device() is None:
            drop_state(self._before)
        else:
            call_bounded(lambda: drop_state(self._before), self.timeout, type(self).__name__)

    def _restore_handlers(self) -> None:
        """Restore the handlers that the iteration has replaced; one that Python did not install stays."""
        for number, handler in self._handlers.items():
            now: Any = signal.getsignal(number)
            if now is not handler and handler is not None:
                signal.signal(number, handler)
