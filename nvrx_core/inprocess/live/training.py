"""The flows of a training whose state survives a restart in memory: a commit, and a resume; pure.

They are driven in production and, with simulated ports, by the checker; `memory` has the evidence behind them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from nvrx_core.errors import UsageError
from nvrx_core.inprocess.live.memory import Holding, Incomplete, Mark, Memory, Recovery, Shard, Stamp, recover

__all__ = ["LivePorts", "LiveTraining", "StepRepeatedError"]

REPEATS: Final = 3
"""Iterations in succession with a commit of a step that was done: a pass that was retried once is restarted."""

Objects = TypeVar("Objects")
Objects_contra = TypeVar("Objects_contra", contravariant=True)
Row = TypeVar("Row")
Rows = TypeVar("Rows")


class StepRepeatedError(RuntimeError):
    """A commit of a step that was done; the pass may have been retried by the function, once."""


class LivePorts(Protocol[Objects_contra, Row, Rows]):
    """The process group of an iteration, and the objects of the training."""

    @property
    def iteration(self) -> int:
        """The number of the iteration."""

    @property
    def rank(self) -> int:
        """The number of this rank in the process group."""

    @property
    def repeats(self) -> int:
        """How many iterations before this one have ended in succession by a `StepRepeatedError`, of any rank."""

    def shard_of(self, objects: Objects_contra) -> Shard:
        """Return which part of the parameters the objects have."""

    def width_of(self, rows: Rows | None) -> int:
        """Return of how many ranks there are rows."""

    def exchange(self, holding: Holding) -> Awaitable[Sequence[Holding]]:
        """Return the holdings of all ranks, by rank."""

    def capture(self, objects: Objects_contra, step: int) -> Awaitable[Row]:
        """Return a copy of the local state after a step."""

    def restore(self, objects: Objects_contra, row: Row) -> Awaitable[None]:
        """Put a local state back."""

    def vote(self, row: Row | None, *, transfers: bool = False) -> Awaitable[Rows | None]:
        """Return the rows of all ranks, once all have come to the vote; None if any rank declines, by no row.

        Args:
            row: of this rank.
            transfers: others may come to it much later, from a transfer.

        Raises:
            RuntimeError: when ranks have come for different steps.
        """

    def row_of(self, rows: Rows, rank: int) -> Row:
        """Return the row of a rank."""

    def enter_atomic(self) -> Awaitable[None]:
        """Let no restart interrupt this rank."""

    def leave_atomic(self) -> Awaitable[None]:
        """Let restarts interrupt it again."""

    def advance(self, objects: Objects_contra) -> Awaitable[None]:
        """Change parameters and optimizer state by a step, without any other rank."""

    def is_changed(self) -> bool:
        """Return whether the advance that has failed had changed anything."""

    def shares(self, old: Objects_contra, new: Objects_contra) -> bool:
        """Return whether new objects have tensors of the old ones: a model that outlives the function."""

    def adopt(self, old: Objects_contra, new: Objects_contra) -> Awaitable[None]:
        """Let new objects use the tensors of old ones."""

    def send(self, objects: Objects_contra, to: int) -> Awaitable[None]:
        """Send parameters and optimizer state to a rank."""

    def receive(self, objects: Objects_contra, source: int) -> Awaitable[None]:
        """Receive parameters and optimizer state into new objects."""

    def send_row(self, row: Row, to: int) -> Awaitable[None]:
        """Send a local state to a rank."""

    def receive_row(self, source: int) -> Awaitable[Row]:
        """Receive a local state."""


class LiveTraining(Generic[Objects, Row, Rows]):
    """The state of a training on this rank.

    Attributes:
        memory: what outlives an iteration.
        recovery: how the last resume has brought all ranks to one step, or why it could not; None before it, and where
            no rank has needed another one.
    """

    def __init__(self) -> None:
        self.memory: Memory[Objects, Row, Rows] = Memory()
        self.recovery: Recovery | Incomplete | None = None

    async def commit(self, ports: LivePorts[Objects, Row, Rows], step: int) -> None:
        """Advance by a step on all ranks, or on none; gradients are complete."""
        objects, version = self.memory.objects, self.memory.version
        if objects is None or version is None:
            raise UsageError("commit() before resume(), or before start() where resume() has returned None")
        stamp = Stamp(version.iteration, step)
        if stamp <= version:  # a rank that was interrupted in its vote could not tell whether it has done the step
            raise (UsageError if ports.repeats + 1 >= REPEATS else StepRepeatedError)(
                f"commit({step}) after step {version.step}: each commit has a greater step; where a pass has two, "
                "number them 2 * step and 2 * step + 1"
            )
        row = await ports.capture(objects, step)
        self.memory = self.memory.come_to_vote(Mark(stamp, ports.rank, row, due=True))
        rows = await ports.vote(row)  # outside of the atomic section: it waits for others
        if rows is None:
            raise _out_of_step(f"commit({step})")
        self.memory = self.memory.pass_vote(rows)
        await self._advance(ports, objects, stamp)

    async def resume(
        self, ports: LivePorts[Objects, Row, Rows], new: Objects, newest: Stamp | None = None, *, knows: bool = True
    ) -> int | None:
        """Bring new objects to the newest step in memory, on all ranks.

        Args:
            ports: of the iteration.
            new: its objects.
            newest: the newest vote that any rank had passed when the iteration before was decided, the same on all
                ranks; None if no rank has told of one.
            knows: whether that is a vote of this training, as far as this rank can know.

        Returns:
            The step to go on with; None when the newest step is not whole in memory: load a checkpoint, then start.
        """
        self.recovery = None
        if newest is not None:
            if not (knows and self._holding(ports, new).needs_nobody(newest, ports.rank)):
                await ports.vote(None)
            elif await self._go_on(ports, newest, new):
                return newest.step + 1
        recovery = recover(await ports.exchange(self._holding(ports, new)))
        self.recovery = recovery
        if isinstance(recovery, Incomplete):
            # Another rank may still have what is missing, and be a reserve now.
            self.memory = Memory(new, passed=self.memory.passed)
            return None
        await self._bring(ports, recovery, new)
        return recovery.newest.step + 1

    def _holding(self, ports: LivePorts[Objects, Row, Rows], new: Objects) -> Holding:
        objects, passed = self.memory.objects, self.memory.passed
        shard = None if objects is None else ports.shard_of(objects)
        width = ports.width_of(None if passed is None else passed.rows)
        return self.memory.holding(shard, ports.shard_of(new), width)

    async def _go_on(self, ports: LivePorts[Objects, Row, Rows], newest: Stamp, new: Objects) -> bool:
        """Bring new objects to the newest step without the others; return False if one of these declines.

        The vote comes first: where a rank declines, the new objects may be needed as they are, with initial weights,
        and so may all that this rank holds.
        """
        before, old, row = self.memory, self.memory.objects, self._row_for(ports, newest, ports.rank)
        assert old is not None
        assert before.passed is not None
        stamp = Stamp(ports.iteration, newest.step)
        mark = Mark(stamp, ports.rank, row, due=False, rows=before.passed.rows)  # as they are at the new branch
        self.memory = before.come_to_beginning(mark)
        rows = await ports.vote(row)
        if rows is None:
            self.memory = before
            return False
        self.memory = self.memory.begin(rows)
        await ports.adopt(old, new)
        await ports.restore(new, row)
        self.memory = self.memory.take(new)
        return True

    async def _reach(self, ports: LivePorts[Objects, Row, Rows], newest: Stamp, new: Objects) -> None:
        """Bring the old objects to the newest step, if this rank was interrupted in its vote."""
        old, pending = self.memory.objects, self.memory.pending
        if old is not None and self._holding(ports, new).reaches(newest) and self.memory.version != newest:
            if pending is not None and pending.stamp == newest and pending.due:
                await self._advance(ports, old, newest)
            else:
                self.memory = self.memory.complete(newest)

    async def _bring(self, ports: LivePorts[Objects, Row, Rows], recovery: Recovery, new: Objects) -> None:
        """Bring new objects to the newest step, as all ranks have agreed."""
        old, newest = self.memory.objects, recovery.newest
        await self._reach(ports, newest, new)
        row = await self._transfer(ports, recovery, old, new)
        if row is not None:
            await ports.restore(new, row)
        passed = self.memory.passed
        is_anothers = passed is not None and passed.rows is None and passed.rank != ports.rank
        if passed is None or passed.stamp != newest or is_anothers:
            row = await ports.capture(new, newest.step)
            passed = Mark(newest, ports.rank, row, due=False)
        transfers = any(each.source != each.to for each in recovery.transfers)
        await self._begin(ports, Memory(new, newest, passed=passed), newest.step, transfers=transfers)

    async def _transfer(
        self, ports: LivePorts[Objects, Row, Rows], recovery: Recovery, old: Objects | None, new: Objects
    ) -> Row | None:
        """Take what this rank has, receive what it lacks, and serve others; return its local state."""
        newest, rank = recovery.newest, ports.rank
        if old is not None and rank in recovery.keeps:
            await ports.adopt(old, new)
        row = self.memory.row_of(newest, rank)
        for each in recovery.transfers:
            if each.row and each.source == each.to == rank:
                row = self._row_for(ports, newest, rank)
            elif each.row and each.source == rank:
                await ports.send_row(self._row_for(ports, newest, each.to), each.to)
            elif each.row and each.to == rank:
                row = await ports.receive_row(each.source)
            elif each.source == rank:
                assert old is not None
                await ports.send(old, each.to)
            elif each.to == rank:
                if old is not None and ports.shares(old, new):
                    self.memory = self.memory.begin_change()  # what is overwritten is at no step until the end
                await ports.receive(new, each.source)
        return row

    def _row_for(self, ports: LivePorts[Objects, Row, Rows], newest: Stamp, rank: int) -> Row:
        """Return the local state of a rank, which this one has captured itself or has from the vote."""
        own, passed = self.memory.row_of(newest, rank), self.memory.passed
        if own is not None:
            return own
        assert passed is not None
        assert passed.rows is not None
        return ports.row_of(passed.rows, rank)

    async def start(self, ports: LivePorts[Objects, Row, Rows], step: int) -> None:
        """Begin a branch: the objects of the last resume are at the beginning of `step`."""
        if self.memory.objects is None:
            raise UsageError("start() before resume()")
        await self._begin(ports, Memory(self.memory.objects, passed=self.memory.passed), step - 1)

    async def _begin(
        self,
        ports: LivePorts[Objects, Row, Rows],
        begun: Memory[Objects, Row, Rows],
        step: int,
        *,
        transfers: bool = False,
    ) -> None:
        """Begin a branch: whoever does not come to its vote holds older stamps.

        Args:
            ports: of the iteration.
            begun: the memory until the vote is passed; its objects are complete.
            step: the step that they have done last.
            transfers: other ranks come to the vote from a transfer.
        """
        assert begun.objects is not None
        stamp = Stamp(ports.iteration, step)
        row = await ports.capture(begun.objects, step)
        self.memory = begun.come_to_vote(Mark(stamp, ports.rank, row, due=False))
        rows = await ports.vote(row, transfers=transfers)
        if rows is None:
            raise _out_of_step("the beginning of a branch")
        self.memory = self.memory.pass_vote(rows).complete(stamp)

    async def _advance(self, ports: LivePorts[Objects, Row, Rows], objects: Objects, stamp: Stamp) -> None:
        await ports.enter_atomic()
        try:
            before, self.memory = self.memory, self.memory.begin_change()
            try:
                await ports.advance(objects)
            except BaseException:  # boundary: the step of the user
                if not ports.is_changed():
                    self.memory = before  # it can be done again
                raise
            self.memory = self.memory.complete(stamp)
        finally:
            await ports.leave_atomic()


def _out_of_step(what: str) -> RuntimeError:
    return RuntimeError(f"{what}, while another rank is at the beginning of its resume(): all ranks call it alike")
