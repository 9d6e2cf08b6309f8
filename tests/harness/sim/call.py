"""One call of the wrapped function in a simulated job: its ranks, its keys, and the invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.errors import RankAssignmentError
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.coordination.housekeeping import KeyDeletion
from nvrx_core.inprocess.coordination.membership import Membership
from nvrx_core.inprocess.protocol.flows import FlowRules
from nvrx_core.inprocess.protocol.round import RoundTimeouts
from nvrx_core.rank_assignment.base import Mode, RankAssignment, RankAssignmentCtx
from nvrx_core.rank_assignment.filters import MaxActiveWorldSize
from nvrx_core.rank_assignment.identity import InitialRank, initial_ranks
from nvrx_core.rank_assignment.moves import FillGaps, ShiftRanks
from nvrx_core.store.keys import StoreKeys

from .function import Failed
from .hosted import HostedMain
from .hosting import Hosting
from .options import LONG
from .rank import Rank, Stage
from .rank_main import MainPort

if TYPE_CHECKING:
    from .schedule import Schedule

__all__ = ["Call"]

BACKS_OFF = 1000
"""A limit that no schedule reaches: restarts after equal failures back off."""
MOVES: Final = (FillGaps(), ShiftRanks())
MAX_RESTARTS = 200
"""Restarts where completions may be late, too."""


class _Place(RankAssignment):
    """Discards, moves, and chooses who is active, the same on each rank; it fails where it is told to."""

    def __init__(self, call: Call, iteration: int, member: int) -> None:
        self.call, self.iteration, self.member = call, iteration, member

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        if self.iteration > 0:
            if (self.iteration, self.member) in self.call.errors:
                raise RankAssignmentError("injected", rank=ctx.state.rank, world_size=ctx.state.world_size)
            rank = self.call.discards.get(self.iteration, ctx.state.world_size)
            if rank < ctx.state.world_size and len(ctx.terminated_ranks | {rank}) < ctx.state.world_size:
                ctx.terminated_ranks.add(rank)
        return self.call.limit(self.call.move(ctx))


class Call:
    """One call.

    Args:
        schedule: the schedule that it belongs to.
        number: which call it is, from 0.
        size: how many ranks enter it.

    Attributes:
        ranks: those that have begun to enter, by member.
        goes_on: another call follows.
        active_until: functions run until then, at least.
        completed: a rank has finished it.
        hosting: the store that one of the ranks hosts, if one does.
        main_port: the ports of its main threads.
        wire: the rounds for those that ask the store.
    """

    store: Any = None
    members: frozenset[InitialRank]
    timeouts: RoundTimeouts

    def __init__(self, schedule: Schedule, number: int, size: int) -> None:
        self.schedule, self.options, self.world = schedule, schedule.options, schedule.world
        self.number, self.size, self.hangs = number, size, schedule.hangs
        self.goes_on = number + 1 < self.options.calls
        self.active_until = self.world.now + self.options.active_for
        self.control, self.keys = schedule.control, StoreKeys("job", 0, number)
        self.hosting = Hosting(self) if self.options.hosted else None
        self.main_port = MainPort if self.hosting is None else HostedMain
        self.slots = self.wire = self.world.rounds_of(self.keys.prefix)
        if self.hosting is not None:
            self.control = GuardedStore(self.hosting.store)  # type: ignore[arg-type]
            self.slots, self.wire = self.hosting.slots, self.hosting.wire  # type: ignore[assignment]
        self.membership, self.deletion = Membership(self.control, self.keys), KeyDeletion(self.control, self.keys)
        self.timeouts = RoundTimeouts(LONG, self.options.completion, self.options.last_call)
        self.entries: dict[int, dict[int, tuple[int, int]]] = {}
        self.held: dict[int, dict[int, int]] = {}
        self.inside, self.completed = Counter[int](), False
        self.leases: dict[InitialRank, str] = {}
        self._living: dict[frozenset[InitialRank], list[InitialRank]] = {}
        self.move, self.limit = MOVES[self.options.shift], MaxActiveWorldSize(self.options.active)
        self._draw_failures()
        self.rules = FlowRules(no_progress_limit=BACKS_OFF)
        self.members = initial_ranks(size)
        self.ranks: dict[InitialRank, Rank] = {}

    def _draw_failures(self) -> None:
        """Choose which assignments and plug-ins fail; in the first call only."""
        rng, options, first = self.world.rng, self.options, not self.number
        discards, errors, plug_ins = (
            (options.discards, options.errors, options.plug_ins) if first else (0, 0, 0)
        )  # fmt: skip
        self.discards = {rng.randint(1, 3): rng.randrange(self.size) for _ in range(discards)}
        self.errors = {(rng.randint(1, 3), rng.randrange(self.size)) for _ in range(errors)}
        kinds = ("keys", "initialize", "recovery")
        self.plug_ins = {
            (rng.choice(kinds), rng.randint(0, 2), rng.randrange(self.size)) for _ in range(plug_ins)
        }  # fmt: skip

    def rules_of(self, member: int) -> FlowRules:
        """What is settled for all of the call."""
        if self.hosting is None:
            return self.rules
        return replace(self.rules, hosts_store=self.is_hosted_by(member), store_is_hosted=True)

    def is_hosted_by(self, member: int) -> bool:
        """Whether the process of this member hosts the store."""
        return self.hosting is not None and member == 0

    def ended(self, rank: Rank) -> None:
        """A process has left the call, or is dead."""
        if self.hosting is not None:
            self.hosting.ended(rank)

    def store_is_closed(self) -> bool:
        """Whether the process that hosted the store has ended."""
        return self.hosting is not None and self.hosting.store.closed

    def poke(self) -> None:
        """Something that ranks may wait for in their functions, or on entry, has happened."""
        for rank in self.ranks.values():
            rank.main.poke()

    def living(self, lost: frozenset[InitialRank]) -> list[InitialRank]:
        """The members but the lost, in order; kept, as all ranks of a large job ask."""
        if lost not in self._living:
            self._living[lost] = sorted(self.members - lost)
        return self._living[lost]

    def moves(self, before: int | None, after: int | None) -> None:
        """A rank goes from one function to another; None: outside."""
        if before is not None:
            self.inside[before] -= 1
        if after is not None:
            self.inside[after] += 1

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

    def add(self, member: InitialRank, process: int) -> Rank:
        """A process begins to enter."""
        assert 0 <= member < self.size, f"I16: process {process} is rank {member} of {self.size} in call {self.number}"
        other = self.ranks.get(member)
        assert other is None, f"I16: two processes are rank {member} in call {self.number}"
        if not self.number:  # further calls are joined by `Entry`
            self.control.put_once(self.keys.claim(member), str(process))
        self.ranks[member] = rank = Rank(self, member, process)
        return rank

    def enters(self, rank: Rank) -> None:
        """A rank enters the function."""
        k, state = rank.iteration, rank.state
        entered = self.entries.setdefault(k, {})
        most = self.options.troubles if self.options.completion >= LONG else MAX_RESTARTS
        assert k <= most, f"I9: {rank.member} enters {k}: more restarts than troubles"
        if self.world.remembers:
            self.world.note(rank.name, f"enters as {state.rank} of {state.world_size}, {state.mode.name},", k)
        assert rank.stage is Stage.ALIVE, f"I7: {rank.member} enters {k} and is {rank.stage}"
        assert rank.member not in entered, f"I7: {rank.member} enters {k} again"
        assert k == 0 or rank.member in self.entries[k - 1], f"I7: {rank.member} enters {k} and was not in {k - 1}"
        if self.completed or self.slots[-1].decision is None:  # it is over, and its keys are deleted
            self._check_late_entry(rank)
            return
        for i in range(-1, k):
            decision = self.slots[i].decision
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
        assert self.slots[k - 1].event != (None,), f"I11: {rank.member} enters {k} after a completed round"

    def _check_late_entry(self, rank: Rank) -> None:
        """A rank that the others have declared lost, and that was paused meanwhile, goes on to learn of it."""
        decision = self.slots[rank.iteration].decision
        late = decision is not None and rank.member in decision.lost
        assert late, f"I5: {rank.member} enters {rank.iteration} after the others have completed the call without it"

    def finished(self, rank: Rank) -> None:
        """A rank has finished the call."""
        k = rank.iteration
        assert self.slots[k].decision is None, f"I11: {rank.member} finishes {k}, which ended by a decision"
        assert max(self.entries) == k, f"I11: {rank.member} finishes {k}, and others are in {max(self.entries)}"
        self.completed = True
        self.schedule.completes(self)

    def check_end(self) -> None:
        """Check how all ranks have ended.

        Raises:
            AssertionError: when they wait, or have not ended alike.
        """
        ranks = self.ranks.values()
        stages = {rank.member: rank.stage.value for rank in ranks}
        assert Stage.ALIVE.value not in stages.values(), f"deadlock: {stages}"
        self._check_entry()
        lost = [rank.member for rank in ranks if rank.stage is Stage.LOST]
        host_ends = any(rank.is_dead() and (rank.gone or not rank.member) for rank in self._and_before())
        assert host_ends or not lost, f"I14: {lost} lose the store of call {self.number}, and its host lives"
        monitors = [rank.member for rank in ranks if rank.monitor.alive]
        assert not monitors or self._nobody_decides(), f"the monitor processes of {monitors} wait for ever: {stages}"
        ends = {rank.iteration for rank in ranks if rank.stage is Stage.FINISHED}
        assert len(ends) <= 1, f"I11: members finish different iterations: {ends}"
        for k, entered in self.entries.items():
            size = next(iter(entered.values()))[1]
            if len(entered) == size:
                assert {number for number, _ in entered.values()} == set(range(size)), f"I2: gaps in {k}: {entered}"
        if ends:
            self._check_deletion(ends.pop())

    def _and_before(self) -> Iterator[Rank]:
        """The ranks of this call, and of the one before."""
        for call in self.schedule.calls[max(0, self.number - 1) : self.number + 1]:
            yield from call.ranks.values()

    def _nobody_decides(self) -> bool:
        """Whether all have given up or are dead, some perhaps before they have entered.

        A monitor process may then wait for a decision until `barrier_timeout`; nobody needs its report.
        """
        if len(self.ranks) < self.size:
            return True
        ranks = self.ranks.values()
        return any(each.expired or (each.gone and not self.membership.has_left(each.member)) for each in ranks)

    def _check_entry(self) -> None:
        """All have entered the call, or none has: it is entered by as many as there are."""
        expired = [rank.member for rank in self.ranks.values() if rank.expired]
        assert not (expired and self.entries), f"I16: {expired} give up at the entry of call {self.number}, others run"
        nobody_listens = self.hosting is not None and not self.hosting.store.opened
        missing = nobody_listens or len(self.ranks) < self.size or any(rank.gone for rank in self.ranks.values())
        assert missing or not expired, f"I16: {expired} give up at the entry of call {self.number}, and all have come"

    def _check_deletion(self, completed: int) -> None:
        """The keys of a completed call are deleted, if all have gone out of it one after the other."""
        options = self.options
        disturbed = (
            options.hosted or options.hangs or options.suspicions or options.pauses or options.kills or options.nodes
        )
        if disturbed or any(rank.stage is not Stage.FINISHED for rank in self.ranks.values()):
            return
        early = {key for k in range(completed - 2) for key in self.keys.round(k).of_all}  # deleted while the call ran
        left = set(self.schedule.store.keys_under(f"{self.keys.prefix}/")) - early
        assert not left, f"I13: the keys of call {self.number} are there: {sorted(left)}"
