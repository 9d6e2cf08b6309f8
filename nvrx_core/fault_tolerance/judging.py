"""The flow of a rank monitor's turn: sample the rank, ask whether others are behind it, end it. Pure.

The monitor, the simulation and the checker drive the same flow, each with a port of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from nvrx_core.fault_tolerance.policy import KillRank, MonitorPolicy, QueryPeers, TerminateRank
from nvrx_core.progress.limits import RankSample

__all__ = ["JudgedRank", "turn"]


class JudgedRank(Protocol):
    """A rank, as its monitor judges it. Only the answers of others take time."""

    def sample(self) -> RankSample:
        """Return the present sample of the rank."""

    def is_excused(self, query: QueryPeers) -> Awaitable[bool]:
        """Ask the other monitors and the rank; return whether their answers excuse it."""

    def terminate(self, action: TerminateRank) -> None:
        """Send the rank its termination signal."""

    def kill(self, action: KillRank) -> None:
        """Kill the rank."""


async def turn(policy: MonitorPolicy, rank: JudgedRank, now: Callable[[], float]) -> None:
    """Judge the rank once; after a query about others, by a new sample.

    Args:
        policy: decides; its `deadline` says when the next turn is due.
        rank: the rank.
        now: seconds of the sample's clock.
    """
    asks = True
    while asks:
        asks = False
        for action in policy.evaluate(rank.sample(), now=now()):
            match action:
                case QueryPeers(limit):
                    policy.peers_behind(limit, await rank.is_excused(action), now=now())
                    asks = True
                case TerminateRank():
                    rank.terminate(action)
                case _:
                    rank.kill(action)
