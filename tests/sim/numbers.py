"""The machines of a round as tables: each state, input, action and store record has a number, each step is taken once.

So a job's state is a tuple of small numbers, and a search costs look-ups instead of calls; what the tables hold comes
from the real machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nvrx_core.inprocess.fault import Fault
from nvrx_core.inprocess.round import Action, Finish, Obituary, ReadEvent, Round

from .record import TIMEOUTS, Answer, Record, perform

__all__ = ["Mourner", "Numbers", "Tables"]


class Mourner(NamedTuple):
    """The state of an `Obituary`, and whether it has come to its end."""

    iteration: int
    member: int
    members: frozenset[int]
    fault: Fault
    finished: bool = False

    @classmethod
    def of(cls, obituary: Obituary, finished: bool = False) -> Mourner:
        return cls(obituary.iteration, obituary.member, obituary.members, obituary.fault, finished)

    def obituary(self) -> Obituary:
        return Obituary(self.iteration, self.member, self.members, self.fault)


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


class Tables:
    """The steps taken so far."""

    def __init__(self) -> None:
        self.machines, self.actions, self.records = Numbers(), Numbers(), Numbers()
        self.empty = self.records(Record())
        self._moves: dict[tuple[int, str, Any], tuple[int, tuple[int, ...]]] = {}
        self._operations: dict[tuple[int, int], tuple[int, Answer]] = {}

    def queue(self, actions: Iterable[Action]) -> tuple[int, ...]:
        """The numbers of actions."""
        return tuple(map(self.actions, actions))

    def name(self, action: int) -> str:
        """An action, for people."""
        return type(self.actions.values[action]).__name__

    def move(self, machine: int, method: str, *told: Any) -> tuple[int, tuple[int, ...]]:
        """A machine's next state when a method is called, and its actions; that it has ended is kept in its state."""
        key = machine, method, tuple(tuple(each.items()) if isinstance(each, Mapping) else each for each in told)
        known = self._moves.get(key)
        if known is None:
            known = self._moves[key] = self._take(self.machines.values[machine], method, told)
        return known

    def _take(self, state: Any, method: str, told: tuple[Any, ...]) -> tuple[int, tuple[int, ...]]:
        if isinstance(state, Mourner):
            obituary = state.obituary()
            actions = getattr(obituary, method)(*told, now=0.0)
            finished = state.finished or any(isinstance(action, Finish) for action in actions)
            rest = [action for action in actions if not isinstance(action, Finish)]
            return self.machines(Mourner.of(obituary, finished)), self.queue(rest)
        round_ = Round.from_state(state, TIMEOUTS)
        if method == "tick":
            round_.deadline = 0.0
        actions = getattr(round_, method)(*told, now=0.0)
        round_.check()
        once = method in ("happened", "event", "decided") and actions != (ReadEvent(),)
        again = once and getattr(round_, method)(*told, now=0.0)
        assert not again, f"I8: a second {method} is acted upon: {again}"
        return self.machines(round_.state()), self.queue(actions)

    def perform(self, record: int, action: int) -> tuple[int, Answer]:
        """A record after an action of the store, and the answer."""
        known = self._operations.get((record, action))
        if known is None:
            before: Record = self.records.values[record]
            after, answer = perform(before, self.actions.values[action])
            assert before.decision in (None, after.decision), f"I6: a second decision: {after.decision}"
            assert before.event in ((), after.event), f"I11: a second event: {after.event}"
            known = self._operations[record, action] = self.records(after), answer
        return known
