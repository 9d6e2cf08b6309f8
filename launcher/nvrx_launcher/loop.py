"""The event loop: descriptors with their callbacks, one deadline, and the pauses in which it does not turn."""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from nvrx_core.liveness.awake_clock import AwakeClock

__all__ = ["EventLoop", "Pause", "Standstill"]

WORTH_A_LINE: Final = 2.0
"""Seconds of a pause that the log names."""


class EventLoop:
    """Waits for many descriptors at a time; all callbacks run in the thread that turns it."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, fd: int, readable: Callable[[], object]) -> None:
        """Call `readable` whenever a descriptor is readable, or at its end."""
        self._selector.register(fd, selectors.EVENT_READ, readable)

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor, before it is closed; one that is not watched is no error."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def turn(self, deadline: float) -> float:
        """Wait until a descriptor is readable, or until a monotonic time; then call back.

        Args:
            deadline: monotonic seconds; `inf` waits for a descriptor.

        Returns:
            The time up to which everything that has arrived is handled: deadlines are compared with it. The callbacks
            may have taken long, and what has arrived meanwhile, such as a renewed lease, is handled in the next turn.
        """
        timeout = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        found = self._selector.select(timeout)
        now = time.monotonic()
        for key, _ in found:
            if self._selector.get_map().get(key.fd) is key:  # an earlier one may have ended it, and reused its number
                callback: Callable[[], Any] = key.data
                callback()
        return now

    def close(self) -> None:
        """Stop watching all descriptors."""
        self._selector.close()


@dataclass(frozen=True)
class Pause:
    """A pause of the launcher.

    Attributes:
        shortest: seconds that it has lasted at least.
        longest: seconds that it can have lasted: it may have begun while the launcher had nothing to do.
        doing: what took most of it; "" if unknown.
        is_busy: most of it was not while it waited for events.
    """

    shortest: float
    longest: float
    doing: str
    is_busy: bool

    @property
    def is_worth_a_line(self) -> bool:
        """Whether the log should name it."""
        return self.longest >= WORTH_A_LINE

    def __str__(self) -> str:
        shortest, longest = f"{self.shortest:.0f}", f"{self.longest:.0f}"
        length = longest if shortest == longest else f"{shortest} to {longest}"
        why = f", {self.doing}" if self.doing else ": it was stopped, or got no processor"
        if self.is_busy and not self.doing:
            why += ", or a file that it writes or reads did not answer"
        return f"this launcher stood still for {length} s{why}"


class Standstill:
    """Recognises the pauses of a loop: while it does not turn, its process notices nothing.

    A process that is stopped, a machine that is suspended, or a file on a stalled file system hold up the loop. What
    was due meanwhile is judged late, and not before what has arrived meanwhile is handled; the log names the pause.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, *, now: float) -> None:
        self._clock, self._awake_at = AwakeClock(), now
        self._doing, self._longest = "", 0.0

    def did(self, what: str, seconds: float) -> None:
        """Record how long the launcher was busy with something."""
        if seconds > self._longest:
            self._doing, self._longest = what, seconds

    def turned(self, due: float, *, asked: float, now: float) -> Pause | None:
        """Record a turn of the loop; return the pause before it or in it, if there was one.

        Args:
            due: until when the loop intended to wait.
            asked: when it began to wait.
            now: when it was awake again.
        """
        busy, asleep = self._clock.woke(self._awake_at, now=asked), self._clock.woke(due, now=now)
        doing = self._doing if self._longest >= (busy + asleep) / 2 else ""
        self._awake_at, self._doing, self._longest = now, "", 0.0
        if not busy + asleep:
            return None
        return Pause(busy + asleep, busy + (now - asked if asleep else 0.0), doing, busy > asleep)
