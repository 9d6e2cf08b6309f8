"""The flows that interrupt the main thread: what is observed, fired and waited for, and in which order. Pure.

`InterruptPolicy` decides what to fire; these flows put its decisions in order. The monitor thread carries them out on
its main thread, the simulation and the checker on a simulated one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nvrx_core.inprocess.interruption.policy import Fire, InterruptPolicy, Seen, Unblock, Why
from nvrx_core.inprocess.protocol.effects import Effect, Flow

__all__ = [
    "AwaitLeft", "AwaitUnmasked", "CloseBlocked", "FireInterrupt", "Observe", "ReportDeferred", "ReportStored",
    "ReportSwallowed", "begin", "drive",
]  # fmt: skip

WARN_DEFERRED_AFTER: Final = 0.2
FIRST_WITHIN: Final = 0.05
"""Seconds for which the abort waits for a function that the signal reaches but must not interrupt yet."""
FIRST_LOOK: Final = 0.0003
"""Seconds within which a busy function handles the signal."""


@dataclass(slots=True)
class Observe(Effect):
    """Resumed with what is `Seen` of the main thread."""


@dataclass(slots=True)
class FireInterrupt(Effect):
    """Interrupt the main thread."""

    why: Why


@dataclass(slots=True)
class CloseBlocked(Effect):
    """Close what the main thread blocks in, where no signal reaches it."""


@dataclass(slots=True)
class AwaitLeft(Effect):
    """Wait until the main thread has left the function, or until the deadline; resumed with whether it has left."""

    deadline: float


@dataclass(slots=True)
class AwaitUnmasked(Effect):
    """Wait until no atomic section is open; resumed with whether the main thread has left the function."""


@dataclass(slots=True)
class ReportStored(Effect):
    """The function has caught the interruption and stored it."""


@dataclass(slots=True)
class ReportSwallowed(Effect):
    """The function has swallowed that many interruptions."""

    count: int


@dataclass(slots=True)
class ReportDeferred(Effect):
    """The interruption is deferred for long."""


def begin(machine: InterruptPolicy, now: Callable[[], float]) -> Flow[None]:
    """Interrupt, and repeat while that is deferred: a busy function ends before the abort begins.

    A thread that does not react is not waited for, also not one that has deferred the interruption and blocks since:
    it may be in a collective that only the abort ends. `drive` continues from here, with the same machine.
    """
    end = now() + FIRST_WITHIN
    seen: Seen = yield Observe()
    while not (seen.out or seen.masked):
        before, fired = seen, (yield from _act(machine, seen, now))
        if (yield AwaitLeft(machine.deadline if machine.deferring else now() + FIRST_LOOK)):
            return
        seen = yield Observe()
        blocks = fired and (seen.deferred, seen.raised) == (before.deferred, before.raised)
        if blocks or not seen.deferred or now() > end:
            return


def drive(machine: InterruptPolicy, now: Callable[[], float]) -> Flow[None]:
    """Interrupt until the main thread has left the function; a thread that is outside of it is left alone."""
    warned = False
    left: bool = yield AwaitLeft(now())
    while not left:
        seen: Seen = yield Observe()
        yield from _act(machine, seen, now)
        if not warned and machine.deferred_for(now=now()) > WARN_DEFERRED_AFTER:
            warned = True
            yield ReportDeferred()
        left = yield (AwaitUnmasked() if seen.masked else AwaitLeft(machine.deadline))


def _act(machine: InterruptPolicy, seen: Seen, now: Callable[[], float]) -> Flow[bool]:
    """Carry out what is due; return whether it has interrupted."""
    swallowed, actions = machine.swallowed, machine.tick(seen, now=now())
    for action in actions:
        if isinstance(action, Fire) and action.why is Why.STORED:
            yield ReportStored()
        yield CloseBlocked() if isinstance(action, Unblock) else FireInterrupt(action.why)
    if machine.swallowed > swallowed:
        yield ReportSwallowed(machine.swallowed)
    return any(isinstance(action, Fire) for action in actions)
