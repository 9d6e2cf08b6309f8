"""Calls with a timeout: each runs in its own thread.

A thread cannot be terminated from outside: a call that hangs leaves a daemon thread, and the caller gets an error.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from nvrx_core.errors import TimeoutError

__all__ = ["call_all_bounded", "call_bounded", "cuda_device"]


def cuda_device() -> int | None:
    """Return the current CUDA device, None when this process has not used CUDA; CUDA is not initialised."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_device())


def call_bounded(fn: Callable[[], object], timeout: timedelta, name: str) -> None:
    """Run `fn` in a daemon thread, on the caller's CUDA device, and wait for it.

    Args:
        fn: the call.
        timeout: how long to wait.
        name: the name of the thread; it appears in the error as well.

    Raises:
        TimeoutError: nvrx's, when the call does not return in time.
        BaseException: the exception of the call.
    """
    errors = call_all_bounded({name: fn}, timeout, cuda_device())
    if errors:
        raise errors.pop(name)  # not via a variable: the traceback and this frame would keep each other alive


def call_all_bounded(
    calls: Mapping[str, Callable[[], object]], timeout: timedelta, device: int | None = None
) -> dict[str, BaseException]:
    """Run calls concurrently, each in a daemon thread, and wait for all of them.

    Args:
        calls: the calls, by the names of their threads.
        timeout: how long to wait for all of them together.
        device: the CUDA device to make current in the threads; None to leave CUDA alone.

    Returns:
        The errors by name: the exception of a call, or nvrx's `TimeoutError` for one that has not returned.
    """
    errors = dict[str, BaseException]()
    threads = {
        name: threading.Thread(target=_run, name=name, args=(fn, device, name, errors), daemon=True)
        for name, fn in calls.items()
    }
    for thread in threads.values():
        _start(thread)
    seconds = timeout.total_seconds()
    deadline = time.monotonic() + seconds
    for name, thread in threads.items():
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            errors[name] = TimeoutError(f"{name} has not ended within {timeout}", what=name, seconds=seconds)
    return errors


def _start(thread: threading.Thread) -> None:
    """Start the thread; if the process has no threads left, run the call here without a timeout."""
    try:
        thread.start()
    except RuntimeError:
        thread.run()


def _run(fn: Callable[[], object], device: int | None, name: str, errors: dict[str, BaseException]) -> None:
    try:
        if device is not None:
            sys.modules["torch"].cuda.set_device(device)
        fn()
    except BaseException as error:  # boundary: the thread ends here, the caller gets the error
        errors[name] = error
