"""Rank 1 is in a call that keeps the interpreter's lock when rank 0 fails; the iteration after that is completed.

`NVRX_TEST_HOLD` names the call.
"""

import ctypes
import os
import re
import time
from collections.abc import Callable

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from tests.process.workers.record import Record


def regex() -> None:
    """Backtracks for years; looks for signals now and then."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def sleep() -> None:
    """Returns at a signal, and not before."""
    ctypes.PyDLL(None).sleep(1000)


CALLS: dict[str, Callable[[], None]] = {"regex": regex, "sleep": sleep}


def main() -> None:
    record = Record.of_environment()
    me = int(os.environ["RANK"])

    @inprocess.Wrapper()
    def train(call: CallWrapper) -> None:
        record("enter", iteration=call.iteration, world_size=int(os.environ["WORLD_SIZE"]))
        if call.iteration == 0 and me == 1:
            CALLS[os.environ["NVRX_TEST_HOLD"]]()
            time.sleep(1000)
        if call.iteration == 0:
            time.sleep(1)
            record("fails")
            raise RuntimeError("injected")

    train()


if __name__ == "__main__":
    main()
