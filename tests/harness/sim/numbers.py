"""Interned values, and memoized steps of members and store records.

So a job's state is a tuple of small integers, and a search does look-ups instead of calls; the production code computes
the entries of the tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nvrx_core.inprocess.protocol.round import RoundPhase
from nvrx_core.progress.stage import Stage

from . import requests
from .job import Config
from .member import MAIN, MONITOR, THREAD, Member
from .record import Record, perform
from .world import Operation, Wish

__all__ = ["Members", "Numbers", "Records", "Seen"]


class Numbers:
    """Gives equal values the same number."""

    def __init__(self) -> None:
        self.of: dict[Any, int] = {}
        self.values: list[Any] = []

    def __call__(self, value: Any) -> int:
        number = self.of.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Records:
    """The records of rounds, and what each operation does to them; each with its arguments has a number, too."""

    def __init__(self) -> None:
        self.operations, self.records = Numbers(), Numbers()
        self.empty = self.records(Record())
        self._performed: dict[tuple[int, int], tuple[int, Any]] = {}

    def shortened(self, record: int) -> int:
        """A record of which only that is left which is read late."""
        whole: Record = self.records.values[record]
        return self.records(Record(event=whole.event, decision=whole.decision, master=whole.master))

    def perform(self, record: int, operation: int) -> tuple[int, Any]:
        """A record after an operation, and the answer."""
        known = self._performed.get((record, operation))
        if known is None:
            before: Record = self.records.values[record]
            after, answer = perform(before, *self.operations.values[operation])
            assert before.decision in (None, after.decision), f"I6: a second decision: {after.decision}"
            assert before.event in ((), after.event), f"I11: a second event: {after.event}"
            known = self._performed[record, operation] = self.records(after), answer
        return known


class Seen(NamedTuple):
    """A member as the checker sees it.

    Attributes:
        main, thread, monitor: the pending requests.
        operation: the number of each that is an operation on the store, by the flow's name.
        end: how its call has ended; "" while it has not.
        released: another member has marked it as left.
        round: the round of its monitor thread.
        phase: of that round.
        known: the members, as the progress page knows them.
        endpoint: where its process group meets.
        unresponsive: its monitor process has reported another member, and has yet to release it.
        timed: what the main thread waits for has a deadline.
        joined: it has joined the others, where it had to.
        abandons: it leaves by an exception, of which the others are told, and has yet to report it.
        claimed: the generation in which it has claimed its place there, from 1.
    """

    main: Wish | None
    thread: Wish | None
    monitor: Wish | None
    operation: dict[str, int]
    end: str
    left: bool
    released: bool
    iteration: int
    round: int
    phase: RoundPhase
    members: frozenset[int]
    rank: int
    world: int
    known: frozenset[int]
    section: int
    endpoint: str
    spoken: dict[int, int]
    unresponsive: bool
    timed: bool
    joined: bool
    abandons: bool
    claimed: int


class Members:
    """The states of members, by number, and the steps taken so far.

    Args:
        config: the job.
        operations: numbers the operations.
    """

    def __init__(self, config: Config, operations: Numbers) -> None:
        self.config, self.operations = config, operations
        self.outcomes = Numbers()
        self.seen: list[Seen] = []
        self._of: dict[tuple[int, tuple[object, ...]], int] = {}
        self._origin: list[tuple[int, str, Any]] = []
        self._steps: dict[tuple[int, str, Any], int] = {}

    def first(self, member: int) -> int:
        """A member on entry."""
        return self._number(Member(self.config, member), (-1 - member, "", None))

    def step(self, number: int, what: str, given: Any = None, key: Any = None) -> int:
        """The member after an input; `key` stands for what is given, where that cannot be hashed."""
        asked = number, what, given if key is None else key
        known = self._steps.get(asked)
        if known is None:
            member = self._again(number)
            member.apply(what, given)
            known = self._steps[asked] = self._number(member, (number, what, given))
        return known

    def _again(self, number: int) -> Member:
        """Make a member again from its inputs."""
        inputs = []
        while number >= 0:
            number, what, given = self._origin[number]
            if what:
                inputs.append((what, given))
        member = Member(self.config, -1 - number)
        for what, given in reversed(inputs):
            member.apply(what, given)
        return member

    def _number(self, member: Member, origin: tuple[int, str, Any]) -> int:
        key = member.member, member.fingerprint()
        number = self._of.setdefault(key, len(self.seen))
        if number == len(self.seen):
            self._origin.append(origin)
            self.seen.append(self._see(member))
        return number

    def _see(self, member: Member) -> Seen:
        main, thread, monitor = (member.pending[which] for which in (MAIN, THREAD, MONITOR))
        operations = {
            which: self.operations((effect.operation, *effect.args))
            for which, effect in member.pending.items()
            if isinstance(effect, Operation)
        }
        round_, endpoint = member.rounds.view.round, member.flow.endpoint
        return Seen(
            main, thread, monitor, operations,
            member.end, member.left, member.released, member.iteration, round_.iteration, round_.phase, round_.members,
            member.state.rank, member.state.world_size, member.known, member.section,
            f"{endpoint[0]}:{endpoint[1]}" if endpoint else "", member.spoken, bool(member.watch.unresponsive),
            isinstance(main, requests.Await) and main.view.round.deadline < 1e300, member.stage is not Stage.OUTSIDE,
            member.abandons(), member.entering.claimed,
        )  # fmt: skip
