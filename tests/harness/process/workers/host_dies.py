"""Rank 0, which hosts the control store, is killed as its monitor process starts, once the other rank has entered."""

import os
import signal
import time
from pathlib import Path

from nvrx_core import failpoint, inprocess
from tests.harness.process import host

RANK, PID, ENTERED = os.environ["RANK"], os.getpid(), Path(os.environ["TMPDIR"], "entered")


def at_start(name: str, _: int) -> None:
    if (name, RANK) == ("monitor-ready", "0"):
        host.eventually(ENTERED.exists, 30)
        os.kill(PID, signal.SIGKILL)


@inprocess.Wrapper()
def work() -> None:
    if RANK == "1":
        ENTERED.touch()
    time.sleep(60)


if __name__ == "__main__":
    failpoint.install(at_start)
    work()
