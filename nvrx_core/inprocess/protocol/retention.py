"""Which rounds must be kept for late readers: their event, decision and rendezvous. Pure.

Two kinds of members read a decision later than the others, who do not wait for them:

* A member that leaves waits for the decision of the round in which it leaves, and the monitor process of a dead one for
  the decision by which it is lost. It reads it before it marks the member as left, so that round is kept while the call
  runs. If a sibling that found the member silent marks it first, nobody knows when it is read: it outlives the call.
* A member whose lease is not renewed for `heartbeat_timeout` is declared lost, but its process may be alive: its node
  was stopped or disconnected. When it continues, it must find the decision that declared it lost; otherwise it would
  make a decision of its own and continue alone. Nobody knows when that is, so those rounds outlive the call.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from nvrx_core.inprocess.protocol.decision import Decision
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["JOINING", "kept_after_call", "kept_in_call"]

JOINING: Final = -2
"""The round before the first barrier: the ranks join, and its decision is the verdict on their generation."""


def kept_in_call(decision: Decision) -> frozenset[int]:
    """Return the rounds that a decision requires to be kept while the call runs."""
    left = {decision.iteration} if decision.lost else frozenset[int]()
    return kept_after_call(decision) | left


def kept_after_call(decision: Decision, released: Collection[InitialRank] = ()) -> frozenset[int]:
    """Return the rounds that a decision requires to be kept even when the call is completed.

    A silent member that is lost in a round has arrived in the previous one, whose decision it may not have read yet; it
    has read all earlier decisions. One that was silent, and that arrived itself or by its monitor process nevertheless,
    has read the previous one, too.

    Args:
        decision: the round's.
        released: members that others have marked as left.
    """
    arrived = {decision.iteration} if set(decision.lost).intersection(released) else frozenset[int]()
    silent = {decision.iteration - 1, decision.iteration} if decision.silent else frozenset[int]()
    return frozenset(arrived | silent)
