"""One simulated schedule: a job, what strikes it, and what must hold.

First troubles strike and the invariants are checked at each step (safety); then the troubles end, and every rank that
lives must come to the same end (liveness).
"""

from __future__ import annotations

from typing import Any

from nvrx_core.errors import RankAssignmentError
from nvrx_core.inprocess.round import RoundTimeouts
from nvrx_core.rank_assignment.base import Mode, RankAssignment, RankAssignmentCtx
from nvrx_core.rank_assignment.filters import MaxActiveWorldSize
from nvrx_core.rank_assignment.moves import FillGaps, ShiftRanks

from .options import Options
from .rank import How, Rank, Stage
from .record import Rules
from .world import World

__all__ = ["Failure", "Schedule"]

LONG = 60.0


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


class Schedule:
    """One schedule.

    Args:
        options: what it is made of.
        rules: how the store carries out actions.
    """

    store: Any = None

    def __init__(self, options: Options, rules: type[Rules] = Rules) -> None:
        self.options = options
        self.world = World(options.seed, options.slow, rules)
        rng = self.world.rng
        self.timeouts = RoundTimeouts(LONG, options.completion, options.last_call)
        self.entries: dict[int, dict[int, tuple[int, int]]] = {}
        self.stale = set[int]()
        self.discards = {rng.randint(1, 3): rng.randrange(options.ranks) for _ in range(options.discards)}
        self.errors = {(rng.randint(1, 3), rng.randrange(options.ranks)) for _ in range(options.errors)}
        self.ranks = [Rank(self, member) for member in range(options.ranks)]
        self._plan()

    def _plan(self) -> None:
        """Choose when and whom the troubles strike: at a time, or as a rank's operation is under way."""
        options, rng = self.options, self.world.rng
        strikes = {
            "crash": options.crashes, "node": options.nodes, "fault": options.faults, "leave": options.leaves,
            "hang": options.hangs, "kill": options.kills, "suspect": options.suspicions,
        }  # fmt: skip
        self._pending: list[tuple[int, str]] = []
        for what, times in strikes.items():
            for _ in range(times):
                if what in ("crash", "node", "kill") and rng.random() < 0.6:
                    self._pending.append((rng.randrange(30 * options.ranks), what))
                else:
                    self.world.after(rng.uniform(0.0, options.active_for), lambda what=what: self._strike(what))  # type: ignore[misc]
        self._pending.sort(reverse=True)
        self.world.on_operation = self._operated

    def _operated(self, operations: int) -> None:
        while self._pending and operations >= self._pending[-1][0]:
            what = self._pending.pop()[1]
            self.world.after(0.0, lambda what=what: self._strike(what))  # type: ignore[misc]

    def _strike(self, what: str) -> None:
        rng = self.world.rng
        living = [rank for rank in self.ranks if rank.stage is Stage.ALIVE]
        if not living:
            return
        rank = rng.choice(living)
        match what:
            case "crash" | "node" if len(living) > 1:
                rank.die(node=what == "node")
                if what == "node":
                    self.world.after(0.02, lambda: self._grow_stale(rank.member))
            case "fault" | "leave":
                rank.strike = How.FAILED if what == "fault" else How.LEFT
            case "hang":
                rank.hung = True
            case "kill":
                rng.choice(self.ranks).replace_monitor()
            case "suspect":
                rank.suspects.add(rng.randrange(self.options.ranks))
            case _:
                pass
        self._poke()

    def _grow_stale(self, member: int) -> None:
        self.stale.add(member)
        self._poke()

    def _poke(self) -> None:
        for rank in self.ranks:
            self.world.poke(rank.member)

    def run(self) -> None:
        """Let it happen.

        Raises:
            Failure: when an invariant does not hold.
        """
        try:
            self.world.run(2 * LONG)
            self._check_end()
        except AssertionError as error:
            raise Failure(f"{error}\n{self.options}\n{self.world.history()}") from error

    def assignment(self, iteration: int, member: int) -> RankAssignment:
        """What the user composed."""
        return _Place(self, iteration, member)

    # What must hold

    def enters(self, rank: Rank) -> None:
        """A rank enters the function."""
        k, state = rank.iteration, rank.state
        entered = self.entries.setdefault(k, {})
        self.world.note(str(rank.member), f"enters as {state.rank} of {state.world_size}, {state.mode.name},", k)
        assert rank.stage is Stage.ALIVE, f"I7: {rank.member} enters {k} and is {rank.stage}"
        assert rank.member not in entered, f"I7: {rank.member} enters {k} again"
        assert k == 0 or rank.member in self.entries[k - 1], f"I7: {rank.member} enters {k} and was not in {k - 1}"
        for i in range(-1, k):
            decision = self.world.records[i].decision
            assert decision is not None, f"I6: {rank.member} enters {k}, and {i} has no decision"
            assert rank.member not in decision.lost, f"I5: {rank.member} was lost in {i}"
        assert 0 <= state.rank < state.world_size, f"I2: {rank.member} is {state.rank} of {state.world_size} in {k}"
        for other, (number, size) in entered.items():
            assert number != state.rank, f"I1: {rank.member} and {other} are both rank {number} in {k}"
            assert size == state.world_size, f"I2: {rank.member} and {other} differ in the world size of {k}"
        entered[rank.member] = state.rank, state.world_size
        active = min(self.options.active, state.world_size)
        assert (state.rank < active) == (state.mode is Mode.ACTIVE), f"I2: {rank.member} is {state.mode} in {k}"
        for other in rank.view.round.members:
            inside = self.ranks[other].inside
            assert inside is None or inside >= k, f"I3: {rank.member} enters {k} before {other} has left {inside}"
        assert self.world.records[k - 1].event != (None,), f"I11: {rank.member} enters {k} after a completed round"

    def finished(self, rank: Rank) -> None:
        """A rank has finished the job."""
        k = rank.iteration
        assert self.world.records[k].decision is None, f"I11: {rank.member} finishes {k}, which ended by a decision"
        assert max(self.entries) == k, f"I11: {rank.member} finishes {k}, and others are in {max(self.entries)}"

    def _check_end(self) -> None:
        stages = {rank.member: rank.stage.value for rank in self.ranks}
        assert Stage.ALIVE.value not in stages.values(), f"deadlock: {stages}"
        monitors = [rank.member for rank in self.ranks if rank.monitor.alive]
        assert not monitors, f"the monitor processes of {monitors} wait for ever: {stages}"
        ends = {rank.iteration for rank in self.ranks if rank.stage is Stage.FINISHED}
        assert len(ends) <= 1, f"I11: members finish different iterations: {ends}"
        for k, entered in self.entries.items():
            size = next(iter(entered.values()))[1]
            if len(entered) == size:
                assert {number for number, _ in entered.values()} == set(range(size)), f"I2: gaps in {k}: {entered}"
        late = self.options.completion < LONG
        assert late or max(self.entries, default=0) <= self.options.troubles, "I9: more restarts than troubles"
