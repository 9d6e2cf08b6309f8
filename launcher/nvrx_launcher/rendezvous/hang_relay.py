"""What nodes say of a hang, as decisions for all: the coordinator hands it on, and decides nothing by it. Pure."""

from __future__ import annotations

import math
from typing import Final

from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Message, MessageKind

__all__ = ["ONE_HANG", "HangRelay"]

ONE_HANG: Final = 5.0
"""Seconds in which all that is suspected is one hang: the monitors of all ranks may say so at about the same time."""

MAX_REASON: Final = 1 << 16
"""Characters of what is handed on to all nodes."""


class HangRelay:
    """Hands on the first suspicion of a hang, and the verdict of the coordinator's launcher."""

    def __init__(self) -> None:
        self._cycle, self._asked_at = -1, -math.inf

    def received(self, message: Message, *, cycle: int, judge: int, now: float) -> tuple[Decision, ...]:
        """Return what follows from a message; nothing from one that is not of a hang of this cycle.

        Args:
            message: the message.
            cycle: the present cycle.
            judge: the node whose launcher runs the coordinator.
            now: monotonic seconds.
        """
        if message.cycle != cycle or len(message.reason) > MAX_REASON:
            return ()
        if message.kind is MessageKind.HANG_JUDGED:
            if message.node != judge:
                return ()
            return (Decision(DecisionKind.HANG_JUDGED, message.cycle, message.reason, node=message.node),)
        is_news = message.cycle > self._cycle or now - self._asked_at >= ONE_HANG
        if message.kind is not MessageKind.HANG_SUSPECTED or not is_news:
            return ()
        self._cycle, self._asked_at = message.cycle, now
        return (Decision(DecisionKind.HANG_SUSPECTED, message.cycle, message.reason, node=message.node),)
