"""When a check that runs in a process of its own is killed, and when it is left behind. Pure.

A process that waits in the kernel for a server or a driver may not end by SIGKILL before that answers. So it is waited
for only `ENDS_WITHIN` after it was killed.

When all processes of the node were stopped, as by `scontrol suspend`, a check is not to blame for that time. It is
known by a wake-up that comes late, and gives each check its whole time again.
"""

from __future__ import annotations

import math
from typing import Final

from nvrx_core.values import value

__all__ = ["ENDS_WITHIN", "PAUSE", "KillProbe", "LeaveProbe", "ProbeAction", "ProbeDeadlines"]

ENDS_WITHIN: Final = 0.5
"""Seconds from the SIGKILL of a check until it is left behind."""
PAUSE: Final = 2.0
"""Seconds by which a wake-up is late where the node was stopped; on a busy machine it is less."""


@value
class KillProbe:
    """Kill a check that is overdue."""

    number: int


@value
class LeaveProbe:
    """Leave a check behind that SIGKILL has not ended."""

    number: int


ProbeAction = KillProbe | LeaveProbe


class ProbeDeadlines:
    """The deadlines of checks that run side by side.

    Args:
        overall: seconds after which each of them is killed, whatever its own timeout is.
        now: monotonic seconds.
    """

    def __init__(self, overall: float, *, now: float) -> None:
        self._timeout, self._overall = overall, now + overall
        self._timeouts, self._due, self._killed = dict[int, float](), dict[int, float](), set[int]()

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds; `inf` when no check runs."""
        return min(self._due.values(), default=math.inf)

    def started(self, number: int, timeout: float, *, now: float) -> None:
        """Handle that a check has begun; `timeout` in seconds."""
        self._timeouts[number] = timeout
        self._due[number] = min(now + timeout, self._overall)

    def ended(self, number: int) -> None:
        """Handle that a check has ended."""
        self._due.pop(number, None)

    def woken(self, *, now: float) -> None:
        """Handle that the wait until `deadline` is over; a check whose node was stopped meanwhile begins anew."""
        if now < self.deadline + PAUSE:
            return
        self._overall = now + self._timeout
        for number in self._due.keys() - self._killed:
            self.started(number, self._timeouts[number], now=now)

    def tick(self, *, now: float) -> tuple[ProbeAction, ...]:
        """Return what is due."""
        actions = list[ProbeAction]()
        for number in [each for each, due in self._due.items() if due <= now]:
            if number in self._killed:
                del self._due[number]
                actions.append(LeaveProbe(number))
            else:
                self._killed.add(number)
                self._due[number] = now + ENDS_WITHIN
                actions.append(KillProbe(number))
        return tuple(actions)
