"""What nodes say of a hang, as decisions for all: the coordinator hands it on, and decides nothing by it. Pure."""

from __future__ import annotations

import math
from typing import Final

from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Message, MessageKind

__all__ = ["ONE_HANG", "HangRelay"]

ONE_HANG: Final = 5.0
"""Seconds in which all that is suspected is one hang: the monitors of all ranks may say so at about the same time."""


class HangRelay:
    """Hands on the first suspicion of a hang, and the verdict."""

    def __init__(self) -> None:
        self._cycle, self._asked_at = -1, -math.inf

    def received(self, message: Message, *, now: float) -> tuple[Decision, ...]:
        """Return what follows from a message; nothing from one that is not of a hang."""
        if message.kind is MessageKind.HANG_JUDGED:
            return (Decision(DecisionKind.HANG_JUDGED, message.cycle, message.reason, node=message.node),)
        is_news = message.cycle > self._cycle or now - self._asked_at >= ONE_HANG
        if message.kind is not MessageKind.HANG_SUSPECTED or not is_news:
            return ()
        self._cycle, self._asked_at = message.cycle, now
        return (Decision(DecisionKind.HANG_SUSPECTED, message.cycle, "", node=message.node),)
