"""Rank 0, which hosts the control store, is killed as its monitor process starts."""

import os
import signal
import time

from nvrx_core import failpoint, inprocess

RANK, PID = os.environ["RANK"], os.getpid()


def at_start(name: str, _: int) -> None:
    if (name, RANK) == ("monitor-ready", "0"):
        os.kill(PID, signal.SIGKILL)


@inprocess.Wrapper()
def work() -> None:
    time.sleep(60)


if __name__ == "__main__":
    failpoint.install(at_start)
    work()
