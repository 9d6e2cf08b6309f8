"""A call that may hang, bounded in time: it runs in a thread of its own, on the caller's CUDA device.

A thread cannot be ended from outside: one that hangs is left behind as a daemon, and its caller goes on with an error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import timedelta

from nvrx_core.errors import TimeoutError

__all__ = ["call_bounded", "cuda_device"]


def cuda_device() -> int | None:
    """The current CUDA device, None when this process has not used CUDA; initialises nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_device())


def call_bounded(fn: Callable[[], object], timeout: timedelta, name: str) -> None:
    """Run `fn` in a daemon thread and wait for it.

    Args:
        fn: the call.
        timeout: how long to wait.
        name: the thread's name; the error names it, too.

    Raises:
        TimeoutError: nvrx's, when the call lasts longer.
        BaseException: whatever the call raised.
    """
    call = _Call(fn, cuda_device())
    thread = threading.Thread(target=call.run, name=name, daemon=True)
    thread.start()
    thread.join(timeout.total_seconds())
    if thread.is_alive():
        raise TimeoutError(f"{name} has not ended within {timeout}", what=name, seconds=timeout.total_seconds())
    if call.error is not None:
        try:
            raise call.error
        finally:
            call.error = None  # else the error's traceback and this frame keep each other alive


class _Call:
    def __init__(self, fn: Callable[[], object], device: int | None) -> None:
        self.fn, self.device = fn, device
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            if self.device is not None:
                sys.modules["torch"].cuda.set_device(self.device)
            self.fn()
        except BaseException as error:  # boundary: the thread ends here, its caller raises the error
            self.error = error
