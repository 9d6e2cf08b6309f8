"""The steps of one call of two, which share a store: all keys of both calls have their real names.

The members of the second call join each other. `Membership` and `KeyDeletion` are the shipped ones; an operation of
theirs is one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.coordination.housekeeping import KeyDeletion
from nvrx_core.inprocess.coordination.joining import JoinOperations, JoinRequest, join_for_dead
from nvrx_core.inprocess.coordination.membership import Membership
from nvrx_core.inprocess.protocol.join import EXPIRED, MET
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.store.keys import StoreKeys

from . import requests
from .entering import incarnation_of, terms_of
from .job import QUIT, Config, Job, Step
from .memory_store import MemoryStore
from .numbers import Seen
from .record import record_of, values_of
from .requests import BeginCall, JoinForDead, JoinOperation
from .steps import DEAD, NOT_MET, Steps
from .virtual_ports import EntryPage

__all__ = ["CallSteps"]

Values = Mapping[str, bytes]


class CallSteps(Steps):
    """The steps of one call.

    Args:
        config: the job, with as many members as the call has.
        number: of the call.

    Attributes:
        beside: the keys of the other call.
    """

    def __init__(self, config: Config, number: int) -> None:
        super().__init__(config)
        self.number, self.keys = number, StoreKeys("job", 0, number)
        self.beside: Callable[[], Values] = dict

    def first(self) -> Job:
        job = super().first()
        if self.config.joins:
            return job
        members = map(InitialRank, range(self.config.ranks))
        claims = {self.keys.claim(member): incarnation_of(member).encode() for member in members}
        return job._replace(keys=_items({**claims, self.keys.verdict(0): MET.encode()}))

    def check_end(self, job: Job) -> tuple[str, ...]:
        ends = super().check_end(job)
        if all(end.startswith("finished") for end in ends) and not (self.config.suspicions or self.config.hosted):
            assert not self.values(job), f"I13: keys of call {self.number} are there: {sorted(self.values(job))}"
        begun = [end for end in ends if not end.startswith("not met")]
        assert len(begun) == len(ends) or not any(seen.iteration >= 0 for seen in self._all(job)), f"I16: {ends}"
        return ends

    # The store

    def values(self, job: Job) -> dict[str, bytes]:
        """All keys of the call, with their values."""
        values = dict(job.keys)
        for k, number in enumerate(job.records, -1):
            if number != self.records.empty:
                values.update(values_of(self.records.records.values[number], self.keys.round(k)))
        return values

    def _on_store(self, job: Job, what: Callable[[GuardedStore], Any]) -> tuple[Job, Any]:
        """Do something on the store of both calls; the keys of the other call must be as before."""
        beside = self.beside()
        store = MemoryStore({**beside, **self.values(job)})
        answer = what(GuardedStore(store))  # type: ignore[arg-type]
        values = dict(store.values)
        others = {key: values.pop(key, None) for key in beside}
        assert others == beside, f"I13: call {self.number} changes keys of the other one: {others}, {beside}"
        return self._stored(job, values), answer

    def _stored(self, job: Job, values: dict[str, bytes]) -> Job:
        """The job whose call has these keys."""
        claim = self.keys.claim(InitialRank(0))
        deleted = job.deleted or (claim in dict(job.keys) and claim not in values)
        records = []
        for k, number in enumerate(job.records, -1):
            keys, before = self.keys.round(k), self.records.records.values[number]
            record = record_of(values, keys)._replace(hosted="" if deleted else before.hosted)
            for key in values_of(record, keys):
                del values[key]
            records.append(self.records.records(record))
        over = job.over or deleted or self.keys.over() in values
        return job._replace(records=tuple(records), keys=_items(values), over=over, deleted=deleted)

    # The farewell

    def marked_left(self, job: Job, effect: requests.MarkLeft) -> Job:
        if self.config.hosted:
            return job

        def mark(store: GuardedStore) -> None:
            Membership(store, self.keys).mark_left(effect.member, silent=effect.silent)

        return self._on_store(job, mark)[0]

    def counted_out(self, job: Job, effect: requests.CountOut) -> Job:
        def count(store: GuardedStore) -> None:
            KeyDeletion(store, self.keys).count_out(effect.iteration, effect.living, self.config.ranks)

        return self._on_store(job, count)[0]

    def deleted_if_over(self, job: Job) -> Job:
        return self._on_store(job, lambda store: KeyDeletion(store, self.keys).delete_if_over(self.config.ranks))[0]

    # The way in

    def begin_call(self, job: Job, member: int, which: str, _: BeginCall) -> Iterator[Step]:
        """The process enters: its monitor process watches it from now on."""
        yield f"{member}: enters the call", self._step(job, member, which)

    def join(self, job: Job, member: int, which: str, effect: JoinOperation) -> Iterator[Step]:
        """One operation on the way in; a wait ends with the verdict, or without it if somebody does not come."""
        generation, *_ = effect.args
        if self.config.hosted and isinstance(self.seen(job, 0).main, BeginCall):
            return  # nobody listens yet
        if effect.name != "await_verdict":
            page = EntryPage(self.config.ranks)

            def carry_out(store: GuardedStore) -> Any:
                operations = JoinOperations(store, self.keys, member, page)  # type: ignore[arg-type]
                return getattr(JoinOperations, effect.name).__wrapped__(operations, *effect.args)

            after, answer = self._on_store(job, carry_out)
            yield f"{member}: {effect.name}", self._told(after, member, which, answer)
            return
        verdict = dict(job.keys).get(self.keys.verdict(generation))
        missing = any(self._never_comes(job, seen) for seen in self._all(job))
        if verdict is not None:
            yield f"{member}: reads the verdict", self._told(job, member, which, verdict.decode())
        elif missing or job.budget[QUIT]:
            yield f"{member}: waits no longer", self._expired(job if missing else job.spend(QUIT), generation)

    def _never_comes(self, job: Job, seen: Seen) -> bool:
        """Whether a member has given up, or is dead and was one of those that have."""
        verdict = dict(job.keys).get(self.keys.verdict(seen.claimed - 1), b"")
        return seen.end in {"gone", NOT_MET} or (seen.end in DEAD and verdict.startswith(EXPIRED.encode()))

    def _expired(self, job: Job, generation: int) -> Job:
        """A member has waited for too long; the others read so."""
        key = self.keys.verdict(generation)
        return self._on_store(job, lambda store: store.put_once(key, f"{EXPIRED}nobody"))[0]

    def _told(self, job: Job, member: int, which: str, answer: Any) -> Job:
        return self._step(job, member, which, answer, key=self.members.outcomes(answer))

    def join_for_dead(self, job: Job, member: int, which: str, _: JoinForDead) -> Iterator[Step]:
        """The monitor process completes the way in of a member that has died on it."""
        page = EntryPage(self.config.ranks, self.seen(job, member).claimed)
        incarnation = incarnation_of(member)
        dead = JoinRequest(InitialRank(member), restarts=False, terms=terms_of(member), incarnation=incarnation)

        def complete(store: GuardedStore) -> bool:
            return join_for_dead(store, self.keys, page, dead) is not None  # type: ignore[arg-type]

        after, met = self._on_store(job, complete)
        yield f"{member}: its monitor joins for it", self._step(after, member, which, met)


def _items(values: Values) -> tuple[tuple[str, bytes], ...]:
    return tuple(sorted(values.items()))


CallSteps.rules = {
    **Steps.rules,
    BeginCall: CallSteps.begin_call,
    JoinForDead: CallSteps.join_for_dead,
    JoinOperation: CallSteps.join,
}
CallSteps.asks_store = Steps.asks_store | {JoinForDead, JoinOperation}
