"""What a rank keeps of its training across iterations, and what all ranks do with it after a fault; pure.

Parameters and optimizer state change in one place, the advance of a commit. A vote of all ranks precedes it, and a rank
comes to the vote with complete gradients. So whoever has passed the vote of a step knows that each rank can do it,
alone. After a fault, all go to the newest step that any survivor has passed: who was interrupted in its vote does the
step then, with its old objects. If nobody has passed it, nobody has changed anything, and all are at the step before.

The decision of a round has the newest vote of its arrivals. A rank that has done its step comes to the vote of the new
branch without a word of the others; one that has not declines it, and all exchange what they hold: nothing is given up.

What changes outside of the advance (random numbers, buffers, the position in the data) is copied into a row at each
vote, and the vote carries all rows to all ranks: who takes the place of a lost rank gets its row.

A step that is done again, after a checkpoint was loaded or by other ranks, is another step: a stamp has the iteration
in which its branch began. A rank that was a reserve meanwhile holds the older branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from nvrx_core.values import replaced, value

__all__ = [
    "Holding",
    "Incomplete",
    "Mark",
    "Memory",
    "MemoryLost",
    "Recovery",
    "Row",
    "Rows",
    "Shard",
    "Stamp",
    "Transfer",
    "recover",
]

Objects = TypeVar("Objects")
Row = TypeVar("Row")
Rows = TypeVar("Rows")
Shard = tuple[int, ...]
"""Which parameters a rank has: a coordinate and a size for each sharded dimension, and a checksum of their layout."""


class MemoryLost(RuntimeError):
    """What the ranks have in memory cannot be used: the next iteration begins from a checkpoint.

    Args:
        reason: why.
        is_lasting: no later iteration keeps anything in memory either.
    """

    def __init__(self, reason: str, *, is_lasting: bool = False) -> None:
        super().__init__(reason)
        self.is_lasting = is_lasting


class Stamp(NamedTuple):
    """A step of a branch; the greatest is the newest.

    Attributes:
        iteration: in which the branch began.
        step: the number of the step.
    """

    iteration: int
    step: int


@value
class Mark(Generic[Row, Rows]):
    """A vote that a rank has come to, or has passed.

    Attributes:
        stamp: of the step.
        rank: as which the rank has voted.
        row: its local state after the step.
        due: whether the advance follows; False for the vote at the beginning of a branch.
        rows: the local states of all ranks, once the vote is passed.
    """

    stamp: Stamp
    rank: int
    row: Row
    due: bool
    rows: Rows | None = None


@value
class Memory(Generic[Objects, Row, Rows]):
    """What outlives an iteration; replaced by one assignment, so that no interruption tears it.

    Attributes:
        objects: the parameters, optimizers and the advance of the newest iteration.
        version: the stamp at which parameters and optimizer state are complete; None if they are at none.
        pending: the vote that this rank has come to last: its gradients are complete.
        passed: the vote that it has passed last: so are those of all ranks.
        torn: whether an advance, or a transfer into the same objects, has begun and not ended.
        beginning: the vote of a new branch that it has come to from `version`, besides `pending`.
    """

    objects: Objects | None = None
    version: Stamp | None = None
    pending: Mark[Row, Rows] | None = None
    passed: Mark[Row, Rows] | None = None
    torn: bool = False
    beginning: Mark[Row, Rows] | None = None

    def come_to_vote(self, mark: Mark[Row, Rows]) -> Memory[Objects, Row, Rows]:
        """Return it at a vote."""
        return replaced(self, pending=mark)

    def pass_vote(self, rows: Rows) -> Memory[Objects, Row, Rows]:
        """Return it after the vote that it has come to, to which all have come."""
        assert self.pending is not None
        return replaced(self, passed=replaced(self.pending, rows=rows))

    def come_to_beginning(self, mark: Mark[Row, Rows]) -> Memory[Objects, Row, Rows]:
        """Return it at the vote of a new branch, which begins at its version; another rank may still decline it."""
        return replaced(self, beginning=mark)

    def begin(self, rows: Rows) -> Memory[Objects, Row, Rows]:
        """Return it after that vote: its objects are complete at the beginning of the branch."""
        assert self.beginning is not None
        passed = replaced(self.beginning, rows=rows)
        return Memory(self.objects, passed.stamp, pending=passed, passed=passed)

    def cannot_advance(self) -> Memory[Objects, Row, Rows]:
        """Return it without the vote that it has come to: its gradients are gone."""
        return replaced(self, pending=None)

    def begin_change(self) -> Memory[Objects, Row, Rows]:
        """Return it in an advance, or while its objects are received: until the end, they are at no step."""
        return replaced(self, torn=True)

    def complete(self, stamp: Stamp) -> Memory[Objects, Row, Rows]:
        """Return it with parameters and optimizer state at a step.

        If another rank has passed the vote, this one counts as having passed it, without the rows of the others: the
        other one may be lost.
        """
        passed = self.passed
        if passed is None or passed.stamp < stamp:
            passed = next((each for each in (self.pending, self.beginning) if each and each.stamp == stamp), passed)
        return replaced(self, version=stamp, torn=False, passed=passed, beginning=None)

    def take(self, objects: Objects) -> Memory[Objects, Row, Rows]:
        """Return it with new objects, which are what the old ones were."""
        return replaced(self, objects=objects)

    def holding(self, shard: Shard | None, needs: Shard, width: int) -> Holding:
        """Return what the other ranks must know of it.

        Args:
            shard: of the kept objects.
            needs: the shard of the new ones.
            width: how many ranks the rows of the passed vote are of.
        """
        pending, passed, beginning = (
            None if mark is None else (mark.stamp, mark.rank) for mark in (self.pending, self.passed, self.beginning)
        )
        return Holding(self.version, pending, passed, self.torn, shard, needs, width, beginning)

    def row_of(self, stamp: Stamp, rank: int) -> Row | None:
        """Return the local state that it has itself captured at a step as this rank."""
        marks = (mark for mark in (self.pending, self.passed, self.beginning) if mark is not None)
        return next((mark.row for mark in marks if (mark.stamp, mark.rank) == (stamp, rank)), None)


@value
class Holding:
    """What a rank tells the others when it resumes.

    Attributes:
        version, torn: as in its memory.
        pending, passed, beginning: the stamps of these votes, and the ranks as which it has voted.
        shard: the shard that it has; None without objects.
        needs: the shard that it is to have.
        width: of how many ranks it has the local state at the passed vote.
    """

    version: Stamp | None
    pending: tuple[Stamp, int] | None
    passed: tuple[Stamp, int] | None
    torn: bool
    shard: Shard | None
    needs: Shard
    width: int = 0
    beginning: tuple[Stamp, int] | None = None

    def reaches(self, stamp: Stamp) -> bool:
        """Return whether the rank is at this step, or can do it without the others."""
        stamps = (self.version, self.pending and self.pending[0], self.beginning and self.beginning[0])
        return not self.torn and stamp in stamps

    def needs_nobody(self, stamp: Stamp, rank: int) -> bool:
        """Return whether the rank has passed this vote last, has done its step, and has its own part of it all."""
        has_done = not self.torn and self.version == stamp and self.passed is not None and self.passed[0] == stamp
        return has_done and self.shard == self.needs and self.serves_row(stamp, rank)

    def has_row(self, stamp: Stamp, rank: int) -> bool:
        """Return whether it has itself captured the local state of a rank at this step."""
        return (stamp, rank) in (self.pending, self.passed, self.beginning)

    def serves_row(self, stamp: Stamp, rank: int) -> bool:
        """Return whether it has the local state of a rank at this step, be it from the vote."""
        has_rows = self.passed is not None and self.passed[0] == stamp and rank < self.width
        return has_rows or self.has_row(stamp, rank)


@value
class Transfer:
    """Something that one rank sends to another.

    Attributes:
        source, to: the ranks.
        row: whether it is the local state, else parameters and optimizer state.
    """

    source: int
    to: int
    row: bool = False


@value
class Recovery:
    """How all ranks come to one step.

    Attributes:
        newest: the step.
        keeps: the ranks that have their shard at this step, or will after their advance.
        transfers: what is sent, in order; the ranks are the same on all ranks, and so is the order.
        fresh: the ranks whose local state nobody has: it stays as it is.
    """

    newest: Stamp
    keeps: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    fresh: tuple[int, ...]


@value
class Incomplete:
    """Why the newest step is not whole in memory.

    Attributes:
        newest: the step; None when no rank has passed a vote, as in the first iteration.
        missing: the shards that no survivor has at this step.
    """

    newest: Stamp | None = None
    missing: tuple[Shard, ...] = ()


def recover(holdings: Sequence[Holding]) -> Recovery | Incomplete:
    """Return how the ranks come to one step; all compute the same.

    Args:
        holdings: of all ranks, by rank.
    """
    newest = max((each.passed[0] for each in holdings if each.passed is not None), default=None)
    if newest is None:
        return Incomplete()
    at_newest = [rank for rank, each in enumerate(holdings) if each.reaches(newest)]
    if missing := {each.needs for each in holdings} - {holdings[rank].shard for rank in at_newest}:
        return Incomplete(newest, tuple(sorted(missing)))
    keeps = tuple(rank for rank in at_newest if holdings[rank].shard == holdings[rank].needs)
    transfers, fresh = list[Transfer](), list[int]()
    for number, to in enumerate(rank for rank in range(len(holdings)) if rank not in keeps):
        sources = [rank for rank in at_newest if holdings[rank].shard == holdings[to].needs]
        transfers.append(Transfer(sources[number % len(sources)], to))
    for to, holding in enumerate(holdings):
        if holding.has_row(newest, to):
            continue
        if sources := [rank for rank, each in enumerate(holdings) if each.serves_row(newest, to)]:
            transfers.append(Transfer(to if to in sources else sources[to % len(sources)], to, row=True))
        else:
            fresh.append(to)
    return Recovery(newest, keeps, tuple(transfers), tuple(fresh))
