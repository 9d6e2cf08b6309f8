"""A rank that is interrupted, or fails, in a way that looks like something else: `NVRX_TEST_CASE` names the function.

In iteration 0 rank 0 does what the case says and rank 1 fails, unless the case does; in iteration 1 all return.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import os
import runpy
import signal
import socket
import sys
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nvrx_core import inprocess
from nvrx_core.liveness.hang_detector import HangDetector, SendSignal
from nvrx_core.progress.limits import ProgressSample
from tests.harness.process.workers.record import Record

record = Record.of_environment()
models = weakref.WeakSet[Any]()
kept = list[BaseException]()
SCRIPT = """
import sys, time
from tests.harness.process.workers import endings
endings.make_model(globals())
if int(sys.argv[1]) == 0:
    if endings.me == 1:
        endings.record.await_others(1, "models")
        try:
            raise ValueError("injected")
        except ValueError as error:
            endings.kept.append(error)  # as a tracker of experiments does
            raise
    time.sleep(30)
"""
LONG_IMPORT = """
import time
from tests.harness.process.workers import endings
endings.record("imports")
endings.ping_until_others("fails")
end = time.monotonic() + 6
while time.monotonic() < end:
    time.sleep(0.01)
"""
IMPATIENT = {"soft_timeout": 1.0, "hard_timeout": 40.0, "heartbeat_interval": 0.2, "heartbeat_timeout": 3.0}
me = int(os.environ.get("RANK", "0"))


class Model:
    """What a script makes and holds in a name of its module."""


def make_model(names: dict[str, Any]) -> None:
    kept = sys.modules["__main__"].models
    record("models", alive=len(kept))
    names["model"] = Model()
    kept.add(names["model"])


def checkpoint_fails() -> None:
    record.await_others(1, "enter", iteration=0)
    raise failed_save(ValueError("disk full"))


def checkpoint_wraps() -> None:
    try:
        time.sleep(30)
    except BaseException as error:  # boundary: what torch does
        kept = error
    raise failed_save(kept)


def failed_save(error: BaseException) -> BaseException:
    """What torch raises; it is no Exception."""
    from torch.distributed.checkpoint.api import CheckpointException

    return CheckpointException("save", {0: (error, None)})  # type: ignore[dict-item]


def exits() -> None:
    try:
        time.sleep(30)
    except BaseException:  # boundary: what a script does
        sys.exit(3)


def task_group() -> None:
    async def child() -> None:
        while True:
            await asyncio.sleep(0)
            sum(range(1000))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(asyncio.sleep(30))

    asyncio.run(main())


def group() -> None:
    try:
        time.sleep(30)
    except BaseException as error:  # boundary: what a library does
        raise BaseExceptionGroup("tasks", [error, ValueError("another")]) from None


def sleeps() -> None:
    time.sleep(30)


def imports() -> None:
    """Import a module for longer than the soft timeout and a lease together, ahead of the other by a collective.

    This begins when the other fails: before, no rank is silent.
    """
    folder = Path(os.environ["TMPDIR"])
    (folder / "long_import.py").write_text(LONG_IMPORT)
    sys.path.insert(0, str(folder))
    dist.all_reduce(torch.ones(1), async_op=True)
    importlib.import_module("long_import")


def ping_until_others(what: str) -> None:
    """Wait for the line of another rank as `Record.await_others` does, without being silent."""
    call = inprocess.current_call()
    assert call is not None
    while not record.others(what):
        call.ping()
        time.sleep(0.005)


def suspended(call: inprocess.CallWrapper, held: list[Any]) -> None:
    def section() -> Any:
        with call.atomic():
            yield

    held.append(section())
    next(held[0])
    record.await_others(1, "fails")
    time.sleep(0.5)  # the round ends meanwhile
    raise ValueError("injected in a section")


CASES: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (checkpoint_fails, checkpoint_wraps, exits, task_group, group, sleeps, imports)
}


def signal_always() -> None:
    """The monitor process, forked from here, sends the signal at each turn once the function can run."""
    evaluate = HangDetector.evaluate

    def with_signals(detector: HangDetector, sample: ProgressSample, *, now: float) -> tuple[Any, ...]:
        return evaluate(detector, sample, now=now) + ((SendSignal("a test"),) * 500 if sample.iteration >= 0 else ())

    HangDetector.evaluate = with_signals  # type: ignore[method-assign]


class Rank:
    """This rank, and what is wrong with it."""

    def __init__(self) -> None:
        self.case = os.environ["NVRX_TEST_CASE"]
        self.held = list[Any]()
        self.script = Path(os.environ["TMPDIR"]) / f"script-{me}.py"
        self.script.write_text(SCRIPT)

    def settings(self) -> dict[str, Any]:
        if self.case in ("checkpoint_fails", "checkpoint_wraps"):
            importlib.import_module("torch.distributed.checkpoint.api")  # and much of torch, for most of a second
        if self.case == "blocked":
            signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()) - {signal.SIGUSR1})
        if self.case == "default_timeout":
            socket.setdefaulttimeout(0.2)  # shorter than the waits of this job
        if self.case == "imports":
            return {name: timedelta(seconds=seconds) for name, seconds in IMPATIENT.items()}
        if self.case != "signalled":
            return {}
        signal_always()
        return {"monitor_process_interval": timedelta(milliseconds=1)}

    def __call__(self, call: inprocess.CallWrapper) -> str:
        record("enter", iteration=call.iteration)
        if self.case == "imports":
            dist.init_process_group("gloo")
        if self.case == "module":
            sys.argv = [str(self.script), str(call.iteration)]
            runpy.run_path(str(self.script))
        elif call.iteration == 0 and self.case != "signalled":
            self.inject(call)
        if self.held:
            with call.atomic():
                self.held.pop().close()
        return "done"

    def inject(self, call: inprocess.CallWrapper) -> None:
        if me == 0 and self.case == "suspended":
            suspended(call, self.held)
        if me == 0:
            CASES.get(self.case, sleeps)()
        if self.case == "imports":
            ping_until_others("fails" if me == 2 else "imports")
        if self.case == "checkpoint_fails" or me == 2:
            time.sleep(30)
        if self.case != "imports":
            record.await_others(1, "enter", iteration=0)
            time.sleep(0.3)  # the other begins what the case says
        record("fails")
        if self.case == "imports":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("injected")


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rank = Rank()

    @inprocess.Wrapper(**rank.settings())
    def work(call: inprocess.CallWrapper) -> str:
        return rank(call)

    for record.call in range(8 if rank.case == "signalled" else 1):
        record("done", result=work())
    record("mask", blocked=len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))


if __name__ == "__main__":
    main()
