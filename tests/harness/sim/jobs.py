"""The parts of a small job: its members and its store as values, and what the farewell does to the store."""

from __future__ import annotations

from typing import Any

from nvrx_core.inprocess.protocol.decision import RoundDecision, kept_after_call
from nvrx_core.rank_assignment.identity import InitialRank

from . import requests
from .explorer import Space
from .job import Config, Job
from .numbers import Members, Records, Seen
from .record import Record

__all__ = ["Jobs"]


class Jobs(Space[Job]):
    """The states of one job.

    Args:
        config: the job.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.records = config, Records()
        self.members = Members(config, self.records.operations)

    def first(self) -> Job:
        """All enter the barrier before the first iteration."""
        numbers = tuple(self.members.first(member) for member in range(self.config.ranks))
        return Job(numbers, (self.records.empty,), self.config.budget(), (None,) * self.config.ranks)

    def extent(self, job: Job) -> int:
        """Return how many rounds there are."""
        return len(job.records)

    def __str__(self) -> str:
        return str(self.config)

    # The members and the store

    def seen(self, job: Job, member: int) -> Seen:
        """A member."""
        return self.members.seen[job.members[member]]

    def _all(self, job: Job) -> list[Seen]:
        return [self.members.seen[number] for number in job.members]

    def _store_is_gone(self, job: Job) -> bool:
        return self.config.hosted and bool(self.seen(job, 0).end)

    def _store(self, job: Job, operation: int, iteration: int) -> tuple[Job, Any]:
        """Carry out one operation."""
        number, answer = self.records.perform(self._number(job, iteration), operation)
        return self._with_record(job, iteration, number), answer

    def _with_record(self, job: Job, iteration: int, number: int) -> Job:
        """The job in which a round has this record."""
        if number == self._number(job, iteration):
            return job
        records, place = job.records, iteration + 1
        records += (self.records.empty,) * (place + 1 - len(records))
        return job._replace(records=(*records[:place], number, *records[place + 1 :]))

    def _answer_key(self, answer: Any) -> int:
        given = answer if isinstance(answer, tuple) else (answer,)
        parts = tuple(tuple(part.items()) if isinstance(part, dict) else part for part in given)
        return self.members.outcomes(parts)

    def _number(self, job: Job, iteration: int) -> int:
        place = iteration + 1
        return job.records[place] if 0 <= place < len(job.records) else self.records.empty

    def _record(self, job: Job, iteration: int) -> Record:
        record: Record = self.records.records.values[self._number(job, iteration)]
        return record

    def _decision(self, job: Job, iteration: int) -> RoundDecision:
        decision = self._record(job, iteration).decision
        assert decision is not None
        return decision

    def _members(self, job: Job, iteration: int) -> frozenset[int]:
        """The members of a round."""
        members = frozenset(range(self.config.ranks))
        return members.difference(*(self._decision(job, k).lost for k in range(-1, iteration)))

    # The farewell in the store

    def marked_left(self, job: Job, effect: requests.MarkLeft) -> Job:
        """The store after that; each member remembers its mark."""
        return job

    def counted_out(self, job: Job, effect: requests.CountOut) -> Job:
        """The store after that."""
        after = job._replace(gone=job.gone + 1)
        return self.deleted_if_over(after._replace(over=True)) if after.gone >= effect.living else after

    def deleted_if_over(self, job: Job) -> Job:
        """The store after that, in one step."""
        if not job.over or not all(seen.left or seen.end == "gone" for seen in self._all(job)):
            return job
        released = {InitialRank(member) for member, seen in enumerate(self._all(job)) if seen.released}
        decisions = (self._record(job, k).decision for k in range(-1, len(job.records) - 1))
        kept = (kept_after_call(decision, released) for decision in decisions if decision is not None)
        stay = frozenset[int]().union(*kept)
        records = (
            self.records.shortened(n) if k in stay else self.records.empty for k, n in enumerate(job.records, -1)
        )
        return job._replace(records=tuple(records), deleted=True)
