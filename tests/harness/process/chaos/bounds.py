"""How long a job may take: what docs/reference/launcher.md states under "How long it takes", by the options. Pure."""

from __future__ import annotations

from typing import Final

from .schedule import Shape

__all__ = ["CLOSE", "GRACE", "HANG", "JOIN", "KILL", "LEASE", "READ", "STOP", "TERM", "ended_within", "settled_within"]

LEASE: Final = 5.0
"""Seconds without a sign of life after which a node is lost: the default of the launcher."""
JOIN: Final = 15.0
READ: Final = 5.0
CONNECT: Final = 5.0
"""Seconds after which another connection to a silent rendezvous is given up, before it is waited for."""
CLOSE: Final = 5.0
STOP: Final = 2.0
KILL: Final = 5.0
GIVE_UP: Final = STOP + KILL + 10.0
"""Seconds after which a node is given up that does not stop its workers."""
TERM: Final = 3.0
GRACE: Final = 8.0
HANG: Final = 4.0
"""Seconds that a section, or the time between two heartbeats, or two pings of a wrapped function may last."""
HARD: Final = 8.0
BARRIER: Final = 20.0
"""Seconds that a wrapped call waits for a rank that has not entered it."""
LEFT: Final = 5.0
"""Seconds after the end of the last launcher in which everything is gone."""
START: Final = {"plain": 20.0, "coupled": 20.0, "wrapped": 40.0}
"""Seconds that launchers and workers take to start and to end on a busy machine."""


def settled_within(shape: Shape) -> float:
    """Return within how many seconds, once nothing disturbs it any more, a job goes on or has ended.

    A rank that hangs is ended; the others are stopped, or a node that cannot stop its workers is given up; a node that
    was lost meanwhile is noticed, too; and then the nodes that are left wait for others.
    """
    hang = max(HARD, BARRIER) + GRACE if shape.worker == "wrapped" else HANG if shape.monitored else 0.0
    return LEASE + hang + GIVE_UP + READ + CONNECT + JOIN + START[shape.worker]


def ended_within(shape: Shape) -> float:
    """Return within how many seconds a job whose workers may end has ended."""
    return GIVE_UP + CLOSE + READ + CONNECT + LEASE + START[shape.worker]
