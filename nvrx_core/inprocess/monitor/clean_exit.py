"""A rank that has completed by `sys.exit(0)`: when to check which ranks wait for it, and what to announce. Pure.

Its process groups are aborted, so a rank that waits for it in a collective fails at once. A rank that waits for it in a
rendezvous has no connection that could break, and would wait until its soft timeout. The monitor process of the exited
rank checks this, not those of the waiting ranks: an ordinary slow rendezvous costs no request.
"""

from __future__ import annotations

import math
from typing import Final

from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["CleanExitPolicy"]

LOOK_EVERY: Final = 1.0
"""Seconds between two looks, at first."""
SHARE: Final = 0.1
"""Of the time since the exit: a later look may be that much later."""


class CleanExitPolicy:
    """The policy for one rank's completion by exit.

    Attributes:
        deadline: when the next check is due at the latest.
    """

    def __init__(self) -> None:
        self.deadline = math.inf
        self._iteration, self._since = -1, math.inf

    def due(self, iteration: int | None, *, now: float) -> bool:
        """Whether to read the others' leases for waiting ranks; answer with `waiting`.

        Args:
            iteration: the iteration that the rank has completed by exit and that continues; None for none.
            now: monotonic seconds.
        """
        if iteration is None:
            self.deadline, self._iteration = math.inf, -1
            return False
        if iteration != self._iteration:
            self._iteration, self._since, self.deadline = iteration, now, now + LOOK_EVERY
        if now < self.deadline:
            return False
        self.deadline = now + max(LOOK_EVERY, SHARE * (now - self._since))
        return True

    def waiting(self, members: tuple[InitialRank, ...]) -> str | None:
        """Return what to announce, once, if these ranks wait for the rank and no other rank runs; None for nothing."""
        if not members:
            return None
        self.deadline = math.inf
        return f"exited with code 0, and initial ranks {list(members)} wait for it in a rendezvous"
