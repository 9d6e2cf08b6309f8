"""The view of a round that the two threads of a rank share, and the sequence of rounds. Pure.

A step of a flow runs to its next operation as a whole: no step of the other thread runs in between.
"""

from __future__ import annotations

from nvrx_core.inprocess.protocol.decision import Decision
from nvrx_core.inprocess.protocol.round import Round, RoundTimeouts
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["RoundView", "Rounds"]


class RoundView:
    """One round.

    Attributes:
        round: the machine.
        finished: all members have completed.
        aborted: the abort is done, the main thread may unwind.
        decision: the round's decision.
    """

    __slots__ = ("aborted", "decision", "finished", "round")

    def __init__(self, round_: Round) -> None:
        self.round = round_
        self.finished = self.aborted = False
        self.decision: Decision | None = None

    def is_decided(self) -> bool:
        """The decision is known."""
        return self.decision is not None

    def is_aborted(self) -> bool:
        """The abort is done."""
        return self.aborted

    def is_over(self) -> bool:
        """All have completed, or the round restarts."""
        return self.finished or self.aborted


class Rounds:
    """The rounds of one call, one after another.

    Args:
        member: the rank's initial rank.
        members: the initial ranks of all members.
        timeouts: the bounds of each round.

    Attributes:
        view: the round of the monitor thread.
    """

    def __init__(self, member: InitialRank, members: frozenset[InitialRank], timeouts: RoundTimeouts) -> None:
        self.member, self.timeouts = member, timeouts
        self.view = RoundView(Round(-1, member, members, timeouts))

    def advance(self, members: frozenset[InitialRank]) -> None:
        """Continue with the next round, with these members."""
        following = self.view.round.iteration + 1
        self.view = RoundView(Round(following, self.member, members, self.timeouts))
