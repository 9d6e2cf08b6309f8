"""One simulated schedule: a job of one call or more, and its injected faults.

First faults are injected and the invariants are checked at each step (safety); then no more faults are injected, and
every living rank must come to the same end (liveness).
"""

from __future__ import annotations

from collections import Counter

from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.rank_assignment.identity import InitialRank

from .call import Call
from .function import Failed, Leaves
from .memory_store import SharedStore
from .options import LONG, Options
from .rank import Rank
from .slots import Slots
from .world import World

__all__ = ["Failure", "Schedule"]

KILLS = ("crash", "node", "kill")


class Failure(AssertionError):
    """A schedule in which an invariant did not hold; tells its options and its history."""


class Schedule:
    """One schedule.

    Args:
        options: what it is made of.
        remembers: whether the history is kept, for the message of a failure.

    Attributes:
        store: what its processes share.
        injected: how often each fault was injected.
        recovering: how many of them during a recovery.
        current: the ranks that the processes are, each in its last call.
    """

    def __init__(self, options: Options, *, remembers: bool = False) -> None:
        self.options = options
        self.store = SharedStore(forgets=bool(options.seed % 2))
        self.world = World(options.seed, options.slow, self.store.rounds, remembers=remembers)
        self.control = GuardedStore(self.store)  # type: ignore[arg-type]
        self.injected = Counter[str]()
        self.recovering = self.recovery = 0
        self.hangs = bool(options.hangs or options.wedges)
        self.calls = [Call(self, 0, options.ranks)]
        self.current = [self.calls[0].add(InitialRank(member), member) for member in range(options.ranks)]
        self._plan()

    @property
    def restarts(self) -> int:
        """How often the functions were restarted."""
        return sum(max(call.entries, default=0) for call in self.calls)

    def _plan(self) -> None:
        """Choose when faults are injected: at a time, after a number of operations, in a recovery, or at a farewell."""
        options, rng = self.options, self.world.rng
        injections = {
            "crash": options.crashes, "node": options.nodes, "fault": options.faults, "leave": options.leaves,
            "hang": options.hangs, "kill": options.kills, "suspect": options.suspicions, "exit": options.exits,
            "wedge": options.wedges, "pause": options.pauses,
        }  # fmt: skip
        self._at: list[tuple[int, str]] = []
        self._in_recovery: list[tuple[int, str]] = []
        self._at_farewell: list[str] = []
        for what, times in injections.items():
            for _ in range(times):
                chance = rng.random()
                if what in KILLS and chance < 0.3:
                    self._at.append((rng.randrange(30 * options.ranks * options.calls), what))
                elif what in (*KILLS, "pause") and chance > 0.8 and options.calls > 1:
                    self._at_farewell.append(what)
                elif what in (*KILLS, "suspect", "pause") and chance < 0.7:
                    self._in_recovery.append((rng.randrange(6 * options.ranks), what))
                else:
                    self._inject_later(rng.uniform(0.0, options.active_for * options.calls), what)
        self._at.sort(reverse=True)
        self._in_recovery.sort(reverse=True)
        if self._at or self._in_recovery:
            self.world.on_operation = self._operated

    def release(self) -> None:
        """Let go of what refers to each other, so that it is freed without a look at all that lives."""
        for call in self.calls:
            for rank in call.ranks.values():
                vars(rank.watch).clear()
                vars(rank).clear()
            vars(call).clear()
        vars(self.world).clear()

    # From call to call

    def completes(self, call: Call) -> None:
        """A rank has completed a call: faults at the farewell follow."""
        while call.goes_on and self._at_farewell:
            self._inject_later(self.world.rng.uniform(0.0, 0.003 * self.options.slow), self._at_farewell.pop())

    def continues(self, rank: Rank) -> None:
        """A process has left a call: it enters the next one, at once or late."""
        rng = self.world.rng
        self.world.after(rng.choice((0.0, rng.uniform(0.0, 0.01), rng.uniform(0.0, 0.1))), lambda: self._next(rank))

    def _next(self, rank: Rank) -> None:
        if rank.is_dead():
            return
        if rank.thaws_at > self.world.now:
            self.world.after(rank.thaws_at - self.world.now, lambda: self._next(rank))
            return
        number, size = rank.call.number + 1, rank.state.world_size
        if number == len(self.calls):
            self.calls.append(Call(self, number, size))
        call = self.calls[number]
        assert call.size == size, f"I16: {rank.name} has ended as one of {size}, and others as of {call.size}"
        self.current[rank.process] = call.add(InitialRank(rank.state.rank), rank.process)

    # Faults

    def _inject_later(self, seconds: float, what: str) -> None:
        self.world.after(seconds, lambda: self._inject(what))

    def _operated(self, slots: Slots, iteration: int) -> None:
        """An operation was carried out; one of a round that has its event is part of a recovery."""
        while self._at and self.world.operations >= self._at[-1][0]:
            self._inject_later(0.0, self._at.pop()[1])
        if iteration >= 0 and slots.event and self._in_recovery:
            self.recovery += 1
            while self._in_recovery and self.recovery >= self._in_recovery[-1][0]:
                self._inject_later(0.0, self._in_recovery.pop()[1])
        if not (self._at or self._in_recovery):
            self.world.on_operation = None

    def _inject(self, what: str) -> None:
        rng = self.world.rng
        living = [rank for rank in self.current if rank.goes_on()]
        if not living or (what in ("crash", "node") and len(living) == 1):
            return
        hosts = [rank for rank in living if what in ("crash", "node") and rank.call.is_hosted_by(rank.member)]
        rank = rng.choice(hosts if hosts and rng.random() < 0.4 else living)
        call = rank.call
        self.injected[what] += 1
        last = call.slots.get(max(call.entries, default=-1))
        self.recovering += last is not None and bool(last.event and last.event[0])
        match what:
            case "crash" | "node":
                rank.die(node=what == "node")
            case "fault" | "leave" | "exit":
                errors = {"fault": Failed, "leave": Leaves, "exit": lambda: SystemExit(0)}
                rank.function.injected = errors[what]()  # type: ignore[operator]
                rank.main.poke()
            case "hang":
                rank.function.hangs = True
            case "wedge":
                rank.function.wedges = True
            case "kill":
                rng.choice(self.current).replace_monitor()
            case "pause":
                rank.freeze(rng.uniform(2.0, 12.0) * self.options.beat)
            case _:
                rank.pause_monitor(5.0 * max(1.0, self.options.slow))

    def run(self) -> None:
        """Let it happen.

        Raises:
            Failure: when an invariant does not hold.
        """
        try:
            self.world.run(4 * LONG * self.options.calls)
            for call in self.calls:
                call.check_end()
        except AssertionError as error:
            raise Failure(f"{error}\n{self.options}\n{self.world.history()}") from error
