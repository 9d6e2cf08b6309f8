"""Ranks that run shapes of user code in a loop, and one more that raises at random instants.

The last rank injects the faults: it waits until the first rank reports that it loops, then for a random time, and
raises. Each iteration interrupts one shape; the next one checks in an atomic section the state that this left, and that
a pass still works. One fault in eight does not wait for the report, and so interrupts the entry or that check.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from nvrx_core.inprocess import CallWrapper, Wrapper
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart
from nvrx_core.testing import FaultKind, inject
from tests.harness.process.workers.record import Record
from tests.harness.process.workers.shapes.injections import PLAN, Injection, planned
from tests.harness.process.workers.shapes.shape import Shape, theme


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    plan = json.loads(os.environ[PLAN])
    job = Interrupted(planned(plan["theme"], plan["seed"], plan["rounds"]), theme(plan["theme"]), plan["go"])
    settings = {name: timedelta(seconds=value) for name, value in plan["wrapper"].items()}
    run = Wrapper(no_progress_limit=None, **settings)(job.function)
    run()
    job.record("done", unraisable=job.unraisable)


class Interrupted:
    """One rank."""

    def __init__(self, injections: list[Injection], shapes: tuple[type[Shape], ...], go: str) -> None:
        self.record, self.injections, self.classes = Record.of_environment(), injections, shapes
        self.me, self.last = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
        self.go = os.open(go, os.O_RDWR)
        self.shapes: dict[int, Shape] = {}
        self.passes = 0
        self.unraisable: Counter[str] = Counter()
        self.hook, sys.unraisablehook = sys.unraisablehook, self.count

    def count(self, unraisable: Any) -> None:
        """An interruption that nobody can catch, such as one in `__del__`, is counted, not shown."""
        if issubclass(unraisable.exc_type, RankShouldRestart):
            self.unraisable[getattr(unraisable.object, "__qualname__", type(unraisable.object).__qualname__)] += 1
        else:
            self.hook(unraisable)

    def function(self, call: CallWrapper) -> None:
        due = self.injections[call.iteration] if call.iteration < len(self.injections) else None
        if self.me == self.last:
            self.inject(call.iteration, due)
            return
        with call.atomic():
            self.check(call.iteration - 1)
            shape = self.shape(due.shape) if due else None
            if shape and shape.rehearsed:
                self.attempt(shape, "a pass without an interruption", lambda: shape.run(call))
        if shape and self.me < shape.targets:
            self.loop(call, shape)
        elif due:
            time.sleep(600)
        else:
            self.end(call)

    def inject(self, iteration: int, due: Injection | None) -> None:
        if due is None:
            return
        while due.waits and struct.unpack("i", os.read(self.go, 4))[0] != iteration:
            pass
        time.sleep(due.after)
        inject(FaultKind.EXCEPTION)

    def loop(self, call: Any, shape: Shape) -> None:
        """Until it is interrupted."""
        self.passes = 0
        try:
            if self.me == 0:
                os.write(self.go, struct.pack("i", call.iteration))
            while True:
                shape.run(call)
                self.passes += 1
        except BaseException as error:
            raised = interruptions(error)
            self.record("left", shape=name(shape), iteration=call.iteration, passes=self.passes,
                        error=repr(error)[:300], interruptions=raised)  # fmt: skip
            raise

    def check(self, iteration: int) -> None:
        if iteration >= 0 and (shape := self.shapes.get(self.injections[iteration].shape)) is not None:
            self.attempt(shape, f"after the interruption of iteration {iteration}", shape.check)

    def attempt(self, shape: Shape, when: str, act: Any) -> None:
        """What is broken is told, and made anew, so that it is counted once."""
        try:
            act()
        except Exception as error:  # boundary: whatever is broken is told
            self.record("broken", shape=name(shape), when=when, error=f"{error!r}"[:600])
            self.shapes = {number: other for number, other in self.shapes.items() if other is not shape}

    def shape(self, number: int) -> Shape:
        if number not in self.shapes:
            folder = Path(tempfile.mkdtemp(dir=os.environ["NVRX_TEST_CHECKPOINTS"]))
            self.shapes[number] = self.classes[number](folder)
        return self.shapes[number]

    def end(self, call: Any) -> None:
        """The last iteration, which nobody interrupts: each shape works once more."""
        for number in sorted({due.shape for due in self.injections}):
            shape = self.shape(number)
            if self.me < shape.targets:
                self.attempt(shape, "at the end", lambda shape=shape: shape.run(call))
                self.attempt(shape, "at the end", shape.check)
            shape.close()


def name(shape: Shape) -> str:
    return type(shape).__name__


def interruptions(error: BaseException) -> int:
    """How many interruptions an exception has in its history; more than one: the second one interrupted a cleanup."""
    found, ahead = dict[int, BaseException](), [error]
    while ahead:
        one = ahead.pop()
        if id(one) not in found:
            found[id(one)] = one
            ahead += [other for other in (one.__cause__, one.__context__) if other is not None]
            ahead += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    return sum(isinstance(one, RankShouldRestart) for one in found.values())


if __name__ == "__main__":
    main()
