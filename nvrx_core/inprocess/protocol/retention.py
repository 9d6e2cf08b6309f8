"""Rounds whose event and decision must be kept for late readers. Pure.

A member whose lease is not renewed for `heartbeat_timeout` is declared lost, but its process may be alive: its node was
stopped or disconnected. When it continues, it must find the decision that declared it lost; otherwise it would make a
decision of its own and continue alone.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["rounds_read_late"]


def rounds_read_late(silent_losses: Iterable[int]) -> frozenset[int]:
    """Return the rounds whose event and decision are kept.

    A member that is lost in a round has arrived in the previous one, whose decision it may not have read yet; it has
    read all earlier decisions.

    Args:
        silent_losses: the rounds whose decision declared a silent member lost.
    """
    return frozenset(iteration - back for iteration in silent_losses for back in (0, 1))
