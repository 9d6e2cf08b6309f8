"""Every step of two calls, one after the other: who has completed the first one enters the second.

A process enters while others still leave the first call. It dies between the calls, or in one of them; that call is
then entered by all others, or by none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from .call_steps import CallSteps
from .explorer import Space
from .job import Config, Job
from .numbers import Seen
from .steps import DEAD

__all__ = ["Calls", "TwoCalls"]


class Calls(NamedTuple):
    """A state of both calls.

    Attributes:
        first: the first call; without members when all have left it.
        second: the second one; None before somebody has completed the first.
        seats: the members of the first call that are to be those of the second, in order.
    """

    first: Job
    second: Job | None = None
    seats: tuple[int, ...] = ()

    @property
    def records(self) -> tuple[int, ...]:
        """The rounds of the longer call."""
        second = () if self.second is None else self.second.records
        return max(self.first.records, second, key=len)


class TwoCalls(Space[Calls]):
    """The steps of two calls.

    Args:
        config: the job of the first call; the second has the faults that are left, and no failing plug-ins.
    """

    def __init__(self, config: Config) -> None:
        self.config, once = config, replace(config, second=False)
        self.one = CallSteps(once, 0)
        again = replace(once, joins=True, discards=(), errors=(), fails=())
        self.two = [CallSteps(replace(again, ranks=ranks), 1) for ranks in range(1, config.ranks + 1)]

    def first(self) -> Calls:
        """All enter the first call."""
        return Calls(self.one.first())

    def of(self, calls: Calls) -> Iterator[tuple[str, Calls]]:
        """What can happen next."""
        first, second, seats = calls
        if second is None:
            yield from ((label, self._opened(Calls(after))) for label, after in self.one.of(first))
            return
        two = self.two[len(seats) - 1]
        self.one.beside, two.beside = lambda: two.values(second), lambda: self._values(first)
        if first.members:
            for label, after in self.one.of(first):
                yield label, self._followed(calls._replace(first=after))
        here = [seat for seat, process in enumerate(seats) if self._has_come(first, process)]
        for label, after in two.of(second, here):
            yield f"call 1: {label}", calls._replace(first=first._replace(budget=after.budget), second=after)

    def check_end(self, calls: Calls) -> tuple[str, ...]:
        """Check a state from which nothing can happen; returns how each member ended."""
        ends = self.one.check_end(calls.first) if calls.first.members else ()
        if calls.second is None:
            return ends
        assert not calls.first.members, "deadlock: the first call never ends"
        return self.two[len(calls.seats) - 1].check_end(calls.second)

    def picture(self, calls: Calls) -> str:
        """The state, for people."""
        first = self.one.picture(calls.first) if calls.first.members else "  call 0 has ended"
        if calls.second is None:
            return first
        keys = f"  keys of call 1: {dict(calls.second.keys)}"
        return "\n".join((first, "  call 1:", self.two[len(calls.seats) - 1].picture(calls.second), keys))

    def extent(self, calls: Calls) -> int:
        """Return the number of rounds of the longer call."""
        return len(calls.records)

    def __str__(self) -> str:
        return str(self.config)

    # From call to call

    def _has_come(self, first: Job, process: int) -> bool:
        return not first.members or self.one.seen(first, process).end == "finished"

    def _opened(self, calls: Calls) -> Calls:
        """The second call begins when somebody has completed the first."""
        done = next((seen for seen in self._all(calls.first) if seen.end == "finished"), None)
        if done is None:
            return calls
        seats = self._seats(done)
        second = self.two[len(seats) - 1].first()
        return self._followed(Calls(calls.first, second, seats))

    def _seats(self, done: Seen) -> tuple[int, ...]:
        """Those who were in the last iteration of the first call: its members that the assignment has not discarded."""
        discarded = {member for iteration, member in self.one.config.discards if iteration == done.iteration}
        return tuple(sorted(done.members - discarded))

    def _followed(self, calls: Calls) -> Calls:
        """Something has happened in the first call: who dies there does not come."""
        first, second, seats = calls
        assert second is not None
        second, two = second._replace(budget=first.budget), self.two[len(seats) - 1]
        for seat, process in enumerate(seats):
            seen = self.one.seen(first, process)
            if seen.end == "finished":
                entered = (seen.rank, seen.world, self._seats(seen))
                assert entered == (seat, len(seats), seats), f"I16: {process} enters as {entered}, others as {seats}"
            elif seen.end in DEAD and two.seen(second, seat).end != "gone":
                second = second.member(seat, two.members.step(second.members[seat], "dies", True))
        return Calls(self._settled(first), second, seats)

    def _settled(self, first: Job) -> Job:
        """The first call, of which nothing is left but keys when all have ended."""
        if not all(seen.end and seen.monitor is None for seen in self._all(first)):
            return first
        self.one.check_end(first)
        keys = tuple(sorted(self.one.values(first).items()))
        return Job(members=(), records=(), budget=first.budget, ghosts=(), keys=keys)

    def _values(self, first: Job) -> dict[str, bytes]:
        return self.one.values(first) if first.members else dict(first.keys)

    def _all(self, first: Job) -> list[Seen]:
        return [self.one.seen(first, member) for member in range(len(first.members))]
