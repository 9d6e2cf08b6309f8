"""Threads of torch's C++ library that need the interpreter while the process comes to its end.

A thread that runs the collectives of a group, or a backward pass, frees Python objects once it is done: a tensor that
the script has dropped meanwhile, the context of the last backward pass. CPython before 3.14 ends a thread that waits
for the interpreter while this is exiting by unwinding its stack. The thread is in a destructor, which must not be
unwound, so `std::terminate` aborts the process: "terminate called without an active exception", exit code 134, after a
training that was done (torch 2.13, with and without nvrx). So the exit of the process waits for such threads.
"""

from __future__ import annotations

import atexit
import functools
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from nvrx_core.process.system_calls import native_thread_ids, thread_names

__all__ = ["await_at_exit", "await_native_threads", "sleeps"]

NAMES: Final = ("pt_gloo_runloop", "pt_nccl_watchdg", "pt_autograd_")
"""The names of these threads, or what they begin with."""
PAUSE: Final = 0.02
"""Seconds at a time for which the interpreter is left to them."""
AT_MOST: Final = 2.0
_STATUS: Final = re.compile(r"^State:\s+(\w).*^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE | re.DOTALL)
RUNS: Final = -1


@functools.cache
def await_at_exit() -> None:
    """Have the exit of this process wait for these threads, after the exit callbacks that are registered later."""
    atexit.register(await_native_threads)


def sleeps() -> dict[int, int]:
    """Return how often each of these threads has gone to sleep, by kernel thread id; `RUNS` for one that runs."""
    try:
        names, native = thread_names(), native_thread_ids()
    except OSError:  # the script has left no descriptor free
        return {}
    return {tid: _sleeps_of(tid) for tid, name in names.items() if tid in native and name.startswith(NAMES)}


def await_native_threads(sample: Callable[[], Mapping[int, int]] = sleeps) -> None:
    """Leave the interpreter to these threads until each of them has slept through a whole pause, for a bounded time.

    One that waits for the interpreter is woken by the pause: it has it then, or it is still about to run, on a busy
    host. One that waits for work, or for another rank, sleeps on.

    Args:
        sample: returns the `sleeps` of these threads.
    """
    deadline, before = time.monotonic() + AT_MOST, sample()
    while before and time.monotonic() < deadline:
        threading.Event().wait(PAUSE)
        after = sample()
        if after == before and RUNS not in after.values():
            return
        before = after


def _sleeps_of(tid: int) -> int:
    try:
        with open(f"/proc/self/task/{tid}/status", encoding="utf-8", errors="replace") as file:
            found = _STATUS.search(file.read())
    except OSError:  # it has ended meanwhile
        return 0
    return RUNS if found is None or found[1] == "R" else int(found[2])
