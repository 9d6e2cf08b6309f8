"""Which rounds are read late: their event and decision outlive them. Pure.

A member that is silent for `heartbeat_timeout` is lost, but it may live: its node was stopped, or cut off. Whenever it
goes on, it must find the decision by which it is lost, or it would bring about another one and go on alone.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["rounds_read_late"]


def rounds_read_late(silent_losses: Iterable[int]) -> frozenset[int]:
    """Return the rounds whose event and decision stay.

    A member that is lost in a round has arrived in the one before, whose decision it may not have read yet; it has read
    all earlier ones.

    Args:
        silent_losses: the rounds by whose decision a silent member is lost.
    """
    return frozenset(iteration - back for iteration in silent_losses for back in (0, 1))
