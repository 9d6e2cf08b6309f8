"""Rank 1 is in a call that keeps the interpreter's lock when rank 0 fails; the iteration after that is completed.

`NVRX_TEST_HOLD` names the call.
"""

import ctypes
import os
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Final

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from tests.harness.process.workers.record import Record

WITHIN: Final = 2
"""Seconds within which a rank's watchdog thread has noted on the page that an atomic section is open."""


def regex() -> None:
    """Backtracks practically forever; checks for signals occasionally."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def sleep() -> None:
    """Returns at a signal, and not before."""
    ctypes.PyDLL(None).sleep(1000)


def deaf() -> None:
    """Handles no signal, for longer than the time a main thread has to reach an interruptible point."""
    held = ctypes.PyDLL(None)
    mutex, until = ctypes.create_string_buffer(64), (ctypes.c_int64 * 2)(int(time.time()) + 17, 0)
    held.pthread_mutex_lock(mutex)
    held.pthread_mutex_timedlock(mutex, until)


CALLS: dict[str, Callable[[], None]] = {"regex": regex, "sleep": sleep, "deaf": deaf}
SETTINGS = {"deaf": {"soft_timeout": timedelta(seconds=20), "hard_timeout": timedelta(seconds=30)}}


def main() -> None:
    record = Record.of_environment()
    me, name = int(os.environ["RANK"]), os.environ["NVRX_TEST_HOLD"]

    @inprocess.Wrapper(**SETTINGS.get(name, {}))
    def train(call: CallWrapper) -> None:
        record("enter", iteration=call.iteration, world_size=int(os.environ["WORLD_SIZE"]))
        if call.iteration == 0 and me == 1:
            with call.atomic() if name == "deaf" else nullcontext():
                time.sleep(WITHIN)
                record("holds")
                CALLS[name]()
            time.sleep(1000)
        if call.iteration == 0:
            record.await_others(1, "holds")
            time.sleep(1)
            record("fails")
            raise RuntimeError("injected")

    train()


if __name__ == "__main__":
    main()
