"""A rank that asks, at each place, for the handle of the running call and for the last restart."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from typing import Any

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper, current_call, last_restart
from nvrx_core.inprocess.call.current import interruptions
from nvrx_core.inprocess.finalize import Finalize
from nvrx_core.inprocess.initialize import Initialize
from nvrx_core.inprocess.state import FrozenState
from tests.harness.process.workers.record import Record

record = Record.of_environment()
me = int(os.environ["RANK"])


def look(place: str, **more: Any) -> None:
    call, restart = current_call(), last_restart()
    record(
        "look", place=place, iteration=None if call is None else call.iteration,
        restart=None if restart is None else restart.number, interruptions=interruptions(), **more,
    )  # fmt: skip


class Look(Initialize, Finalize):
    """A plug-in."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __call__(self, state: FrozenState) -> FrozenState:
        look(self.place, at_iteration=state.iteration)
        return state


def in_child() -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(int(current_call() is not None))
    return os.waitpid(pid, 0)[1] == 0


def tell(restart: inprocess.RestartRecord) -> None:
    assert restart.cause is not None
    record(
        "restart", number=restart.number, culprits=restart.culprits, lost=restart.lost, rank=restart.rank,
        world_size=restart.world_size, active=restart.active, step=restart.step, highest_step=restart.highest_step,
        phases=dict(restart.phases), seconds=restart.seconds, interruption=restart.cause.interruption,
        message=restart.cause.message, text=str(restart),
    )  # fmt: skip


def train(call: CallWrapper) -> None:
    handle = current_call()
    assert handle is call
    look("function", child=in_child())
    thread = threading.Thread(target=look, args=("thread",))
    thread.start()
    thread.join()
    if (restart := last_restart()) is not None:
        tell(restart)
    handle.progress((7, 4, 0)[call.iteration] + me)
    with handle.atomic():
        record("enter", iteration=call.iteration)
    if call.iteration < 2:
        if me == call.iteration + 1:
            record.await_others(2, "enter", iteration=call.iteration)
            if call.iteration == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("injected")
        time.sleep(60)


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    look("before")
    wrap = inprocess.Wrapper(initialize=Look("initialize"), finalize=Look("finalize"))
    wrap(train)()
    look("between")
    wrap(lambda: look("second call"))()
    look("after")


if __name__ == "__main__":
    main()
