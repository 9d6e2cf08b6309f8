"""The flow of a rank monitor's turn: sample the rank, ask whether others are behind it, end it. Pure.

The shell, the simulation and the checker run the same flow; each executes its effects in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from nvrx_core.fault_tolerance.policy import KillRank, MonitorPolicy, QueryPeers, TerminateRank

__all__ = ["Request", "TakeSample", "Turn", "turn"]


@dataclass(frozen=True)
class TakeSample:
    """Resumed with a `RankSample`."""


Request = TakeSample | QueryPeers | TerminateRank | KillRank
"""What a turn asks for; `QueryPeers` is resumed with whether the rank is excused."""
Turn = Generator[Request, Any, None]


def turn(policy: MonitorPolicy, now: Callable[[], float]) -> Turn:
    """Judge the rank once; after a query about others, by a new sample.

    Args:
        policy: decides; its `deadline` says when the next turn is due.
        now: seconds of the sample's clock.
    """
    asks = True
    while asks:
        asks = False
        sample = yield TakeSample()
        for action in policy.evaluate(sample, now=now()):
            outcome = yield action
            if isinstance(action, QueryPeers):
                policy.peers_behind(action.limit, outcome, now=now())
                asks = True
