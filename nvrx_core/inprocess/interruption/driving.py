"""The flows that interrupt the main thread: what is observed, fired and waited for, and in which order. Pure.

`InterruptPolicy` decides what to fire; these flows put its decisions in order. The monitor thread runs them on its main
thread, the simulation and the checker on a simulated one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from nvrx_core.inprocess.interruption.policy import Fire, InterruptPolicy, Seen, Unblock, Why

__all__ = ["Interruptible", "begin", "drive"]

WARN_DEFERRED_AFTER: Final = 0.2
FIRST_WITHIN: Final = 0.05
"""Seconds for which the abort waits for a function that the signal reaches but must not interrupt yet."""
FIRST_LOOK: Final = 0.0003
"""Seconds within which a busy function handles the signal."""


class Interruptible(Protocol):
    """The main thread, as those see it who interrupt it."""

    def observe(self) -> Awaitable[Seen]:
        """Return what is `Seen` of the main thread."""

    def fire(self, why: Why) -> Awaitable[None]:
        """Interrupt the main thread."""

    def close_blocked(self) -> Awaitable[None]:
        """Close what the main thread blocks in, where no signal reaches it."""

    def await_left(self, deadline: float) -> Awaitable[bool]:
        """Wait until the main thread has left the function, or until the deadline; return whether it has left."""

    def await_unmasked(self) -> Awaitable[bool]:
        """Wait until no atomic section is open; return whether the main thread has left the function."""

    def report_stored(self) -> Awaitable[None]:
        """The function has caught the interruption and stored it."""

    def report_swallowed(self, count: int) -> Awaitable[None]:
        """The function has swallowed that many interruptions."""

    def report_deferred(self) -> Awaitable[None]:
        """The interruption is deferred for long."""


async def begin(machine: InterruptPolicy, thread: Interruptible, now: Callable[[], float]) -> None:
    """Interrupt, and repeat while that is deferred: a busy function ends before the abort begins.

    A thread that does not react is not waited for, also not one that has deferred the interruption and blocks since:
    it may be in a collective that only the abort ends. `drive` continues from here, with the same machine.
    """
    end = now() + FIRST_WITHIN
    seen = await thread.observe()
    while not (seen.out or seen.masked):
        before, fired = seen, await _act(machine, seen, thread, now)
        if await thread.await_left(machine.deadline if machine.deferring else now() + FIRST_LOOK):
            return
        seen = await thread.observe()
        blocks = fired and (seen.deferred, seen.raised) == (before.deferred, before.raised)
        if blocks or not seen.deferred or now() > end:
            return


async def drive(machine: InterruptPolicy, thread: Interruptible, now: Callable[[], float]) -> None:
    """Interrupt until the main thread has left the function; a thread that is outside of it is left alone."""
    warned = False
    left = await thread.await_left(now())
    while not left:
        seen = await thread.observe()
        await _act(machine, seen, thread, now)
        if not warned and machine.deferred_for(now=now()) > WARN_DEFERRED_AFTER:
            warned = True
            await thread.report_deferred()
        left = await (thread.await_unmasked() if seen.masked else thread.await_left(machine.deadline))


async def _act(machine: InterruptPolicy, seen: Seen, thread: Interruptible, now: Callable[[], float]) -> bool:
    """Carry out what is due; return whether it has interrupted."""
    swallowed, actions = machine.swallowed, machine.tick(seen, now=now())
    for action in actions:
        if isinstance(action, Fire) and action.why is Why.STORED:
            await thread.report_stored()
        await (thread.close_blocked() if isinstance(action, Unblock) else thread.fire(action.why))
    if machine.swallowed > swallowed:
        await thread.report_swallowed(machine.swallowed)
    return any(isinstance(action, Fire) for action in actions)
