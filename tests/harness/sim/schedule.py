"""One simulated schedule: a job, its injected faults, and the invariants.

First faults are injected and the invariants are checked at each step (safety); then no more faults are injected, and
every living rank must come to the same end (liveness).
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any, Final

from nvrx_core.errors import RankAssignmentError
from nvrx_core.inprocess.protocol.main_thread import CallRules
from nvrx_core.inprocess.protocol.round import RoundTimeouts
from nvrx_core.rank_assignment.base import Mode, RankAssignment, RankAssignmentCtx
from nvrx_core.rank_assignment.composition import leader
from nvrx_core.rank_assignment.filters import MaxActiveWorldSize
from nvrx_core.rank_assignment.moves import FillGaps, ShiftRanks

from .options import LONG, Options
from .rank import Failed, Leaves, Rank, Stage
from .world import World

__all__ = ["Failure", "Schedule"]

BACKS_OFF: Final = 1000
"""A limit that no schedule reaches: restarts after equal failures back off."""
MAX_RANKS = 200  # restarts, where completions may be late, too


class Failure(AssertionError):
    """A schedule in which an invariant did not hold; tells its options and its history."""


class _Place(RankAssignment):
    """Discards, moves, and chooses who is active, the same on each rank; it fails where it is told to."""

    def __init__(self, schedule: Schedule, iteration: int, member: int) -> None:
        self.schedule, self.iteration, self.member = schedule, iteration, member

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        options = self.schedule.options
        if self.iteration > 0:
            if (self.iteration, self.member) in self.schedule.errors:
                raise RankAssignmentError("planted", rank=ctx.state.rank, world_size=ctx.state.world_size)
            rank = self.schedule.discards.get(self.iteration, ctx.state.world_size)
            if rank < ctx.state.world_size and len(ctx.terminated_ranks | {rank}) < ctx.state.world_size:
                ctx.terminated_ranks.add(rank)
        ctx = (ShiftRanks() if options.shift else FillGaps())(ctx)
        return MaxActiveWorldSize(options.active)(ctx)


@functools.lru_cache(maxsize=4096)
def _leader(shift: bool, world_size: int, terminated: tuple[int, ...]) -> int | None:
    return leader(ShiftRanks() if shift else FillGaps(), world_size, terminated)


class Schedule:
    """One schedule.

    Args:
        options: what it is made of.
        remembers: whether the history is kept, for the message of a failure.

    Attributes:
        injected: how often each fault was injected.
        recovering: how many of them during a recovery.
    """

    store: Any = None

    def __init__(self, options: Options, *, remembers: bool = False) -> None:
        self.options = options
        self.world = World(options.seed, options.slow, remembers=remembers)
        rng = self.world.rng
        self.timeouts = RoundTimeouts(LONG, options.completion, options.last_call)
        self.entries: dict[int, dict[int, tuple[int, int]]] = {}
        self.held: dict[int, dict[int, int]] = {}
        self.inside = Counter[int]()
        self.injected = Counter[str]()
        self.recovering = self.recovery = 0
        self.hangs = bool(options.hangs or options.wedges)
        self._living: dict[frozenset[int], list[int]] = {}
        self.discards = {rng.randint(1, 3): rng.randrange(options.ranks) for _ in range(options.discards)}
        self.errors = {(rng.randint(1, 3), rng.randrange(options.ranks)) for _ in range(options.errors)}
        plug_ins = ("keys", "initialize", "recovery")
        self.plug_ins = {
            (rng.choice(plug_ins), rng.randint(0, 2), rng.randrange(options.ranks)) for _ in range(options.plug_ins)
        }
        self._same: dict[frozenset[int], frozenset[int]] = {}
        self.rules = CallRules(leader=self.leader, no_progress_limit=BACKS_OFF)
        members = frozenset(range(options.ranks))
        self.ranks = [Rank(self, member, members) for member in range(options.ranks)]
        self._plan()

    def leader(self, world_size: int, terminated: tuple[int, ...]) -> int | None:
        """Who will be rank 0, where all can tell; whom the assignment discards besides, nobody can."""
        return None if self.discards else _leader(self.options.shift, world_size, terminated)

    def _plan(self) -> None:
        """Choose when faults are injected: at a time, after a number of operations, or during a recovery."""
        options, rng = self.options, self.world.rng
        injections = {
            "crash": options.crashes, "node": options.nodes, "fault": options.faults, "leave": options.leaves,
            "hang": options.hangs, "kill": options.kills, "suspect": options.suspicions, "exit": options.exits,
            "wedge": options.wedges,
        }  # fmt: skip
        self._at: list[tuple[int, str]] = []
        self._in_recovery: list[tuple[int, str]] = []
        for what, times in injections.items():
            for _ in range(times):
                chance = rng.random()
                if what in ("crash", "node", "kill") and chance < 0.3:
                    self._at.append((rng.randrange(30 * options.ranks), what))
                elif what in ("crash", "node", "kill", "suspect") and chance < 0.7:
                    self._in_recovery.append((rng.randrange(6 * options.ranks), what))
                else:
                    self._inject_later(rng.uniform(0.0, options.active_for), what)
        self._at.sort(reverse=True)
        self._in_recovery.sort(reverse=True)
        if self._at or self._in_recovery:
            self.world.on_operation = self._operated

    def poke(self) -> None:
        """Something that ranks may wait for in their functions has happened."""
        for rank in self.ranks:
            rank.main.poke()

    def _inject_later(self, seconds: float, what: str) -> None:
        self.world.after(seconds, lambda: self._inject(what))

    def _operated(self, iteration: int) -> None:
        """An operation was carried out; one of a round that has its event is part of a recovery."""
        while self._at and self.world.operations >= self._at[-1][0]:
            self._inject_later(0.0, self._at.pop()[1])
        if iteration >= 0 and self.world.slots[iteration].event and self._in_recovery:
            self.recovery += 1
            while self._in_recovery and self.recovery >= self._in_recovery[-1][0]:
                self._inject_later(0.0, self._in_recovery.pop()[1])

    def _inject(self, what: str) -> None:
        rng = self.world.rng
        living = [rank for rank in self.ranks if rank.stage is Stage.ALIVE]
        if not living or (what in ("crash", "node") and len(living) == 1):
            return
        rank = rng.choice(living)
        if what == "node" and rank.member not in self.world.leases and self.world.slots[-1].decision is None:
            what = "crash"  # on entry, before its first lease, only `barrier_timeout` ends the wait for a node
        self.injected[what] += 1
        last = self.world.slots.get(max(self.entries, default=-1))
        self.recovering += last is not None and bool(last.event and last.event[0])
        match what:
            case "crash" | "node":
                rank.die(node=what == "node")
            case "fault" | "leave":
                rank.injected = Failed() if what == "fault" else Leaves()
                rank.main.poke()
            case "exit":
                rank.injected = SystemExit(0)
                rank.main.poke()
            case "hang":
                rank.hangs = True
            case "wedge":
                rank.wedges = True
            case "kill":
                rng.choice(self.ranks).replace_monitor()
            case _:
                rank.pause_monitor(5.0 * max(1.0, self.options.slow))

    def living(self, lost: frozenset[int]) -> list[int]:
        """The members but the lost, in order; kept, as all ranks of a large job ask."""
        if lost not in self._living:
            self._living[lost] = [member for member in range(self.options.ranks) if member not in lost]
        return self._living[lost]

    def one(self, members: frozenset[int]) -> frozenset[int]:
        """The same set for equal ones: a large job has as many as it has ranks."""
        return self._same.setdefault(members, members)

    def moves(self, before: int | None, after: int | None) -> None:
        """A rank goes from one function to another; None: outside."""
        if before is not None:
            self.inside[before] -= 1
        if after is not None:
            self.inside[after] += 1

    def run(self) -> None:
        """Let it happen.

        Raises:
            Failure: when an invariant does not hold.
        """
        try:
            self.world.run(4 * LONG)
            self._check_end()
        except AssertionError as error:
            raise Failure(f"{error}\n{self.options}\n{self.world.history()}") from error

    def assignment(self, iteration: int, member: int) -> RankAssignment:
        """What the user composed."""
        return _Place(self, iteration, member)

    def fails(self, what: str, rank: Rank) -> BaseException | None:
        """What a user's plug-in raises, if it is its turn to fail."""
        turn = what, rank.state.iteration, rank.member
        if turn not in self.plug_ins:
            return None
        self.plug_ins.discard(turn)
        return Failed()

    # The invariants

    def enters(self, rank: Rank) -> None:
        """A rank enters the function."""
        k, state = rank.iteration, rank.state
        entered = self.entries.setdefault(k, {})
        most = self.options.troubles if self.options.completion >= LONG else MAX_RANKS
        assert k <= most, f"I9: {rank.member} enters {k}: more restarts than troubles"
        self.world.note(rank.member, f"enters as {state.rank} of {state.world_size}, {state.mode.name},", k)
        assert rank.stage is Stage.ALIVE, f"I7: {rank.member} enters {k} and is {rank.stage}"
        assert rank.member not in entered, f"I7: {rank.member} enters {k} again"
        assert k == 0 or rank.member in self.entries[k - 1], f"I7: {rank.member} enters {k} and was not in {k - 1}"
        for i in range(-1, k):
            decision = self.world.slots[i].decision
            assert decision is not None, f"I6: {rank.member} enters {k}, and {i} has no decision"
            assert rank.member not in decision.lost, f"I5: {rank.member} was lost in {i}"
        assert 0 <= state.rank < state.world_size, f"I2: {rank.member} is {state.rank} of {state.world_size} in {k}"
        held = self.held.setdefault(k, {})
        other = held.setdefault(state.rank, rank.member)
        assert other == rank.member, f"I1: {rank.member} and {other} are both rank {state.rank} in {k}"
        other, (_, size) = next(iter(entered.items()), (rank.member, (0, state.world_size)))
        assert size == state.world_size, f"I2: {rank.member} and {other} differ in the world size of {k}"
        entered[rank.member] = state.rank, state.world_size
        active = min(self.options.active, state.world_size)
        assert (state.rank < active) == (state.mode is Mode.ACTIVE), f"I2: {rank.member} is {state.mode} in {k}"
        if any(ranks and i < k for i, ranks in self.inside.items()):
            for other in rank.rounds.view.round.members:
                inside = self.ranks[other].inside
                assert inside is None or inside >= k, f"I3: {rank.member} enters {k} before {other} has left {inside}"
        assert self.world.slots[k - 1].event != (None,), f"I11: {rank.member} enters {k} after a completed round"

    def finished(self, rank: Rank) -> None:
        """A rank has finished the job."""
        k = rank.iteration
        assert self.world.slots[k].decision is None, f"I11: {rank.member} finishes {k}, which ended by a decision"
        assert max(self.entries) == k, f"I11: {rank.member} finishes {k}, and others are in {max(self.entries)}"

    def _check_end(self) -> None:
        stages = {rank.member: rank.stage.value for rank in self.ranks}
        assert Stage.ALIVE.value not in stages.values(), f"deadlock: {stages}"
        # With nobody left to speak for a silent node, the wait for a decision ends with the store or `barrier_timeout`.
        silent = any(rank.gone and rank.member not in self.world.left for rank in self.ranks)
        monitors = [rank.member for rank in self.ranks if rank.monitor.alive and not silent]
        assert not monitors, f"the monitor processes of {monitors} wait for ever: {stages}"
        ends = {rank.iteration for rank in self.ranks if rank.stage is Stage.FINISHED}
        assert len(ends) <= 1, f"I11: members finish different iterations: {ends}"
        for k, entered in self.entries.items():
            size = next(iter(entered.values()))[1]
            if len(entered) == size:
                assert {number for number, _ in entered.values()} == set(range(size)), f"I2: gaps in {k}: {entered}"
