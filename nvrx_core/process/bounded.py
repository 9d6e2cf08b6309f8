"""Calls that may hang, bounded in time: each runs in a thread of its own.

A thread cannot be ended from outside: one that hangs is left behind as a daemon, and its caller goes on with an error.
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
    """The current CUDA device, None when this process has not used CUDA; initialises nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_device())


def call_bounded(fn: Callable[[], object], timeout: timedelta, name: str) -> None:
    """Run `fn` in a daemon thread, on the caller's CUDA device, and wait for it.

    Args:
        fn: the call.
        timeout: how long to wait.
        name: the thread's name; the error names it, too.

    Raises:
        TimeoutError: nvrx's, when the call lasts longer.
        BaseException: whatever the call raised.
    """
    errors = call_all_bounded({name: fn}, timeout, cuda_device())
    if errors:
        raise errors.pop(name)  # in no variable: the error's traceback and this frame would keep each other alive


def call_all_bounded(
    calls: Mapping[str, Callable[[], object]], timeout: timedelta, device: int | None = None
) -> dict[str, BaseException]:
    """Run calls at once, each in a daemon thread, and wait for all of them.

    Args:
        calls: the calls, by the names of their threads.
        timeout: how long to wait, for all together.
        device: the CUDA device to make current in the threads; None to leave CUDA alone.

    Returns:
        What went wrong, by name: what a call raised, or nvrx's `TimeoutError` for one that has not ended.
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
    """Where no further thread is to be had, call now: unbounded is better than not at all."""
    try:
        thread.start()
    except RuntimeError:
        thread.run()


def _run(fn: Callable[[], object], device: int | None, name: str, errors: dict[str, BaseException]) -> None:
    try:
        if device is not None:
            sys.modules["torch"].cuda.set_device(device)
        fn()
    except BaseException as error:  # boundary: the thread ends here, its caller gets the error
        errors[name] = error
