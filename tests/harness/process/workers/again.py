"""A process that goes on after a call, or after an iteration, that has ended: `NVRX_TEST_CASE` says how.

What the wrapper still holds of it is counted without the help of the garbage collector.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from traceback import walk_tb
from typing import Any

from nvrx_core import inprocess
from nvrx_core.errors import RestartAbort
from nvrx_core.inprocess.completion import Completion
from nvrx_core.inprocess.finalize import Finalize
from nvrx_core.inprocess.state import FrozenState
from tests.harness.process.workers.record import Record

record = Record.of_environment()
me = int(os.environ["RANK"])
case = os.environ["NVRX_TEST_CASE"]


class Model:
    """What a function makes."""


made = weakref.WeakSet[Model]()


def model() -> Model:
    new = Model()
    made.add(new)
    return new


def sockets() -> int:
    """How many this process has open."""
    names = list[str]()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum(name.startswith("socket:") for name in names)


def press_ctrl_c(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


class Slow(Finalize):
    """Rank 1 takes its time, and Ctrl-C meets rank 0 while it waits for it."""

    def __call__(self, state: FrozenState) -> FrozenState:
        if state.iteration == 0 and me == 0:
            press_ctrl_c(0.7)
        elif state.iteration == 0:
            record.await_others(1, "left")
        return state


class Press(Finalize, Completion):
    """Ctrl-C on rank 0."""

    def __call__(self, state: FrozenState) -> FrozenState:
        if me == 0 and state.iteration == 0:
            signal.raise_signal(signal.SIGINT)
        return state


def returned(call: inprocess.CallWrapper) -> Any:
    record("models", iteration=call.iteration, alive=len(made))
    if me == 1 and call.iteration == 0:
        record.await_others(1, "models", iteration=0)
        time.sleep(0.5)  # the other returns
        raise ValueError("injected")
    return model()


def in_barrier(call: inprocess.CallWrapper) -> str:
    record("enter", iteration=call.iteration)
    if call.iteration == 0:
        raise ValueError("injected")
    return "done"


def in_completion(call: inprocess.CallWrapper) -> str:
    record("enter", iteration=call.iteration)
    return "done"


def waiting(call: inprocess.CallWrapper) -> str:
    """A fault is injected into rank 0 while it waits for the completion of rank 1."""
    record("enter", iteration=call.iteration)
    if call.iteration == 0:
        if me == 0:
            press_ctrl_c(0.7)
        else:
            time.sleep(20)
    return "done"


def handling(call: inprocess.CallWrapper) -> str:
    """Rank 1 fails and interrupts rank 0."""
    record("enter", iteration=call.iteration)
    if call.iteration == 0:
        if me == 1:
            record.await_others(1, "enter", iteration=0)
            raise ValueError("injected")
        time.sleep(20)
    return "done"


def another_call() -> None:
    steps = 7  # noqa: F841 (what a debugger shows of this frame)
    raise RestartAbort("another call")


def instead(function: Callable[[], Any]) -> Any:
    """Call it where the user handles an exception by which another call has ended."""
    try:
        another_call()
    except RestartAbort as error:
        result = function()
        frames = [(frame.f_code.co_name, dict(frame.f_locals)) for frame, _ in walk_tb(error.__traceback__)]
        record("handled", frames=[name for name, _ in frames], steps=frames[-1][1].get("steps"))
        return result


def second(call: inprocess.CallWrapper) -> str:
    record("second", iteration=call.iteration)
    return "done"


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "returned": returned, "in_barrier": in_barrier, "in_finalize": in_barrier, "in_completion": in_completion,
    "waiting": waiting, "handling": handling,
}  # fmt: skip
PLUGS: dict[str, dict[str, Any]] = {
    "in_barrier": {"finalize": Slow()}, "in_finalize": {"finalize": Press()}, "in_completion": {"completion": Press()},
}  # fmt: skip


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    wrap = inprocess.Wrapper(**PLUGS.get(case, {}))
    gc.collect()
    gc.disable()
    before, kept, began = sockets(), list[BaseException](), time.monotonic()
    function = wrap(FUNCTIONS[case])
    try:
        record("done", result=str(type(instead(function) if case == "handling" else function())))
    except BaseException as error:  # boundary: what the test is about
        kept.append(error)
        record("left", error=repr(error), seconds=time.monotonic() - began)
    record("sockets", more=sockets() - before)
    kept.clear()
    record("freed", more=sockets() - before, models=len(made))
    if os.environ.get("NVRX_TEST_SECOND"):
        record("again", result=inprocess.Wrapper()(second)())
    sys.exit(0)


if __name__ == "__main__":
    main()
