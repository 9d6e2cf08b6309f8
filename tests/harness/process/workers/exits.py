"""Rank 1 leaves while the control store is lost; `NVRX_TEST_CASE` says how, and when the store is killed.

The store is the process with the pid in `NVRX_TEST_STORE`, or rank 0. The other rank waits.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from nvrx_core import failpoint, inprocess
from nvrx_core.errors import RestartAbort
from nvrx_core.inprocess import CallWrapper
from nvrx_core.inprocess.finalize import Finalize
from nvrx_core.inprocess.state import FrozenState
from tests.harness.process.workers.record import Record

ME = int(os.environ["RANK"])
HOW, _, WHEN = os.environ["NVRX_TEST_CASE"].partition(", ")
SOFT, CLEANUP = timedelta(seconds=60), timedelta(seconds=1)
"""The second bounds, by half of it, how long a cleanup defers an interruption."""
record = Record.of_environment()


class OwnEnd(BaseException):
    """How a library ends its process."""


def exits_with_3() -> None:
    sys.exit(3)


def exits_with_0() -> None:
    sys.exit(0)


def raises() -> None:
    raise OwnEnd("injected")


def aborts() -> None:
    raise RestartAbort("injected")


def fails() -> None:
    raise ValueError("injected")


def ends_with_4_whatever_comes() -> None:
    try:
        time.sleep(60)
    except BaseException:  # boundary: what a script does
        sys.exit(4)


def ends_in_finalize() -> None:
    raise ValueError("the function")


WAYS: dict[str, Callable[[], None]] = {
    each.__name__.replace("_", " "): each
    for each in (exits_with_3, exits_with_0, raises, aborts, fails, ends_with_4_whatever_comes, ends_in_finalize)
}


class Ends(Finalize):
    """Ends the process after the function has failed."""

    def __call__(self, state: FrozenState) -> FrozenState:
        if HOW == "ends in finalize" and ME == 1:
            kill_store()
            raise OwnEnd("injected")
        return state


def kill_store() -> None:
    """Kill the process of the store, and wait until it has ended."""
    pid = int(os.environ.get("NVRX_TEST_STORE") or Path(os.environ["TMPDIR"], "host").read_text())
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([process], [], [])
    os.close(process)


def at_barrier(name: str, iteration: int) -> None:
    if (name, iteration) == ("barrier-before", 0):
        kill_store()


def leave() -> None:
    record.await_others(1, "enter")
    if WHEN.startswith("at the barrier"):
        failpoint.install(at_barrier)
    if WHEN == "before":
        kill_store()
    try:
        WAYS[HOW]()
    finally:
        if WHEN == "meanwhile":
            kill_store()
            time.sleep(60)


@inprocess.Wrapper(finalize=Ends(), soft_timeout=SOFT, hard_timeout=SOFT + CLEANUP)
def work(call: CallWrapper) -> Any:
    if ME == 0 and call.iteration == 0:
        Path(os.environ["TMPDIR"], "host").write_text(str(os.getpid()))
    record("enter", iteration=call.iteration)
    if ME == 1:
        leave()
    time.sleep(60)


if __name__ == "__main__":
    work()
