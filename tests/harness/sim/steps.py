"""Every step that a small job can take from one of its states.

A step lets one pending request of a member's flows happen, or injects one fault. The invariants are asserted where a
step could break them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nvrx_core.inprocess.protocol.round import RoundPhase

from . import requests
from .job import BREAK, CRASH, EXIT, FAULT, HANG, KILL, LEAVE, NODE, QUIT, SUSPICION, Job, Step
from .jobs import Jobs
from .member import GAVE_UP, MAIN, MONITOR, THREAD
from .numbers import Seen
from .requests import Sleep
from .slots import Slots
from .world import AwaitKey, Operation, Wish

__all__ = ["Steps"]

DEAD = ("dead", "dead, and told", "gone")
NOT_MET = "not met: Expired"
"""A host that waited for too long, on the way in."""


HARMLESS = (Slots.look_up,)
"""Operations that change nothing, however late they are."""


class Steps(Jobs):
    """The steps of one job.

    Attributes:
        rules: how each effect happens.
        asks_store: those that fail when the store is gone.
    """

    rules: dict[type[Wish], Any]
    asks_store: frozenset[type[Wish]]

    def of(self, job: Job, present: Iterable[int] | None = None) -> Iterator[Step]:
        """What can happen next, among the members that are present, or all."""
        for member in range(self.config.ranks) if present is None else present:
            seen = self.seen(job, member)
            if not seen.end:
                yield from self._flow(job, member, MAIN, seen.main)
                yield from self._flow(job, member, THREAD, seen.thread)
                yield from self._troubles(job, member, seen)
            yield from self._monitor_process(job, member, seen)
            ghost = job.ghosts[member]
            if ghost is not None:
                last: Callable[..., Any] = self.records.operations.values[ghost[0]][0]
                label = f"{member}: its last operation, {last.__name__}, arrives late"
                yield label, self._store(job.ghost(member, None), *ghost)[0]

    def check_end(self, job: Job) -> tuple[str, ...]:
        """Check a state from which nothing can happen; returns how each member ended."""
        found = [self.seen(job, member) for member in range(self.config.ranks)]
        for member, seen in enumerate(found):
            assert seen.end, f"deadlock: member {member} waits for ever"
            assert seen.monitor is None, f"deadlock: the monitor process of member {member} waits for ever"
            host_ended = found[0].end in (*DEAD, NOT_MET)
            assert seen.end != "lost the store" or host_ended, f"I14: member {member} loses the store"
        spent = {seen.iteration for seen in found if seen.end == "spent"}
        finished = any(seen.end == "finished" for seen in found)
        assert len(spent) + finished <= 1, "I11: the retry limit differs from member to member"
        codes = {seen.end for seen in found if seen.end.startswith(GAVE_UP)}
        assert len(codes) <= 1, f"I18: members end with different codes: {codes}"
        written_late = self.config.hangs or self.config.suspicions or self.config.ghosts or self.config.quits
        if finished and not (written_late or self.config.hosted or any(seen.end in DEAD for seen in found)):
            assert set(job.records) <= {self.records.empty}, "I13: the keys of a completed call are there"
        return tuple(f"{seen.end} {seen.iteration}" for seen in found)

    def picture(self, job: Job) -> str:
        """The state, for people."""
        lines = [f"  member {member}: {self.seen(job, member)}" for member in range(self.config.ranks)]
        records = [f"  round {k}: {self.records.records.values[number]}" for k, number in enumerate(job.records, -1)]
        return "\n".join(lines + records)

    # A flow goes on

    def _flow(self, job: Job, member: int, which: str, effect: Wish | None) -> Iterator[Step]:
        """The pending effect of a flow happens, if it can."""
        rule = None if effect is None else self.rules.get(type(effect))
        if rule is None:
            return
        if self._store_is_gone(job) and type(effect) in self.asks_store:
            yield f"{member}: finds no store", self._step(job, member, "loses_store", which)
            return
        yield from rule(self, job, member, which, effect)

    def _operation(self, job: Job, member: int, which: str, effect: Operation) -> Iterator[Step]:
        seen, reads_event = self.seen(job, member), effect.operation is Slots.read_event
        if seen.abandons and reads_event and not self._record(job, effect.iteration).event:
            yield f"{member}: finds that the call is over", self._step(job, member, "loses_store", which)
            return
        after, answer = self._store(job, seen.operation[which], effect.iteration)
        label = f"{member}: {effect.name} in {effect.iteration}"
        if self.config.whole and effect.operation is Slots.publish and not job.deleted:
            self._check_exit(after, effect.iteration)
        yield label, self._step(after, member, which, answer, key=self._answer_key(answer))

    def _host(self, job: Job, member: int, which: str, _: requests.HostRendezvous) -> Iterator[Step]:
        address, iteration = f"node{member}:1", self.seen(job, member).iteration + 1
        hosted = self.records.records(self._record(job, iteration)._replace(hosted=address))
        after = self._step(self._with_record(job, iteration, hosted), member, which, address)
        yield f"{member}: hosts the rendezvous of {iteration}", after

    def _await_key(self, job: Job, member: int, which: str, effect: AwaitKey) -> Iterator[Step]:
        rules = {"event": self._event, "decision": self._await_decision, "master": self._await_rendezvous}
        return rules[effect.key](job, member, which, effect)

    def _await_rendezvous(self, job: Job, member: int, which: str, effect: AwaitKey) -> Iterator[Step]:
        said = self._record(job, effect.iteration).master
        if said:
            host, _, port = said.partition(":")
            yield f"{member}: learns where to meet", self._step(job, member, which, (host, int(port)) if port else None)

    def _event(self, job: Job, member: int, which: str, effect: AwaitKey) -> Iterator[Step]:
        event = self._record(job, effect.iteration).event
        if event:
            told = event[0] is not None or self.seen(job, member).phase is not RoundPhase.OPEN
            assert told, f"I11: a round is completed that member {member} has not completed"
            yield f"{member}: learns the event of {effect.iteration}", self._step(job, member, which)

    def _await_decision(self, job: Job, member: int, which: str, effect: AwaitKey) -> Iterator[Step]:
        decision = self._record(job, effect.iteration).decision
        if decision is not None:
            label = f"{member}: its {which} learns the decision of {effect.iteration}"
            yield label, self._step(job, member, which, decision, key=self.members.outcomes(decision))
        elif which == MONITOR and not job.deleted and all(seen.end for seen in self._all(job)):
            yield f"{member}: its monitor waits no longer", self._step(job, member, "ends_monitor")

    def _at_once(self, job: Job, member: int, which: str, effect: Wish) -> Iterator[Step]:
        after = self._step(job, member, which)
        if type(effect) is requests.BeginIteration:
            self._check_entry(after, member, self.seen(after, member))
        yield f"{member}: {type(effect).__name__}", after

    def _mark_left(self, job: Job, member: int, which: str, effect: requests.MarkLeft) -> Iterator[Step]:
        after = self._step(self.marked_left(job, effect), member, which)
        if effect.member != member:
            after = self._step(after, effect.member, "marked_left")
        yield f"{member}: says that {effect.member} has left", after

    def _clients(self, job: Job, member: int, which: str, effect: requests.AwaitClients) -> Iterator[Step]:
        """The host waits for members that have left, and not for those whose node is gone."""
        gone = all(seen.left or seen.end == "gone" for seen in self._all(job))
        if gone:
            yield f"{member}: has no clients", self._step(job, member, which)

    def _host_closed(self, job: Job, member: int, which: str, _: requests.AwaitHostClosed) -> Iterator[Step]:
        if self._store_is_gone(job):
            yield f"{member}: the host has closed the store", self._step(job, member, which)

    def _count_out(self, job: Job, member: int, which: str, effect: requests.CountOut) -> Iterator[Step]:
        yield f"{member}: counts itself out", self._step(self.counted_out(job, effect), member, which)

    def _delete_if_over(self, job: Job, member: int, which: str, _: requests.DeleteIfOver) -> Iterator[Step]:
        yield f"{member}: looks whether all is over", self._step(self.deleted_if_over(job), member, which)

    # The main thread

    def _await(self, job: Job, member: int, which: str, _: requests.Await) -> Iterator[Step]:
        if job.budget[QUIT] and self.seen(job, member).timed:
            yield f"{member}: waits no longer", self._step(job.spend(QUIT), member, "waits_no_longer")
        yield from self._break(job, member)

    def _report_failure(self, job: Job, member: int, which: str, _: requests.ReportFailure) -> Iterator[Step]:
        yield f"{member}: reports its failure", self._step(job, member, which)
        yield from self._break(job, member)

    def _break(self, job: Job, member: int) -> Iterator[Step]:
        if job.budget[BREAK]:
            yield f"{member}: is told to end by Ctrl-C", self._step(job.spend(BREAK), member, "breaks")

    def _function(self, job: Job, member: int, which: str, _: requests.RunFunction) -> Iterator[Step]:
        seen = self.seen(job, member)
        if seen.section == 1:
            yield f"{member}: leaves its atomic section", self._step(job, member, "leaves_section")
            return
        if member < self.config.atomic and seen.section == 0 and seen.phase is not RoundPhase.INTERRUPTED:
            yield f"{member}: enters an atomic section", self._step(job, member, "enters_section")
        if not seen.iteration or self._record(job, seen.iteration).hosted == seen.endpoint:  # else it waits to meet
            yield f"{member}: completes", self._step(job, member, "completes")
        for trouble, how in ((FAULT, "fails"), (LEAVE, "leaves"), (EXIT, "exits")):
            if job.budget[trouble]:
                yield f"{member}: {how}", self._step(job.spend(trouble), member, how)

    # The monitor process

    def _monitor_process(self, job: Job, member: int, seen: Seen) -> Iterator[Step]:
        asleep = isinstance(seen.monitor, Sleep)
        if seen.monitor is not None and not asleep:
            yield from self._flow(job, member, MONITOR, seen.monitor)
        if seen.monitor is not None and job.budget[KILL] and (not asleep or seen.unresponsive):
            yield f"{member}'s monitor is replaced", self._step(job.spend(KILL), member, "replaces_monitor")
        if asleep and seen.joined and not seen.end:
            for other in seen.known - {member}:
                yield from self._speaks(job, member, seen, other)

    def _speaks(self, job: Job, member: int, seen: Seen, other: int) -> Iterator[Step]:
        """Speak for another member, which is gone or is taken for dead."""
        if not self._speaks_again(job, member, seen, other):
            return
        found = self.seen(job, other)
        if found.end == "gone":
            yield f"{member} speaks for {other}", self._step(job, member, "speaks_for", other)
        elif job.budget[SUSPICION] and not found.left:
            yield f"{member} takes {other} for dead", self._step(job.spend(SUSPICION), member, "speaks_for", other)
        elif job.deleted and seen.iteration >= 0:
            yield f"{member} finds no lease of {other}", self._step(job, member, "speaks_for", other)

    def _speaks_again(self, job: Job, member: int, seen: Seen, other: int) -> bool:
        """Whether there is something to say for a silent member, after it was said in an earlier round."""
        before = seen.spoken.get(other)
        if before is None or before < seen.iteration:
            return True
        decision = self._record(job, before).decision
        if decision is None or {member, other}.intersection(decision.lost):
            return False
        return self.seen(job, other).end == "gone"

    # Troubles

    def _troubles(self, job: Job, member: int, seen: Seen) -> Iterator[Step]:
        if job.budget[HANG] and isinstance(seen.main, requests.RunFunction) and isinstance(seen.monitor, Sleep):
            yield f"{member}'s monitor takes it for hung", self._step(job.spend(HANG), member, "hangs")
        for trouble in (CRASH, NODE):
            if job.budget[trouble]:
                label = f"{member} dies" if trouble == CRASH else f"{member} and its monitor die"
                after = self._step(job.spend(trouble), member, "dies", trouble == NODE)
                yield label, after
                if self.config.ghosts and isinstance(seen.main, Operation) and seen.main.operation not in HARMLESS:
                    late = after.ghost(member, (seen.operation[MAIN], seen.main.iteration))
                    yield f"{label}, an operation under way", late

    # What must hold

    def _check_entry(self, job: Job, member: int, seen: Seen) -> None:
        k = seen.iteration
        if job.over:
            decision = self._record(job, k).decision
            late = decision is not None and member in decision.lost
            assert late, f"I5: member {member} enters {k} after the others have completed the call without it"
            return
        members = self._members(job, k)
        assert member in members, f"I5: member {member} is out of the job and enters {k}"
        staying = sorted(members - {gone for i, gone in self.config.discards if i == k})
        assert seen.rank == staying.index(member), f"I1: member {member} enters {k} as rank {seen.rank} of {staying}"
        assert seen.world == len(staying), f"I2: member {member} enters {k} with world size {seen.world} of {staying}"
        assert seen.round == k, f"I7: member {member} enters {k} in another round"
        for other in members:
            found = self.seen(job, other)
            inside = found.iteration < k and isinstance(found.main, requests.RunFunction)
            assert not inside, f"I3: member {member} enters {k} before {other} has left {found.iteration}"
        assert self._record(job, k - 1).event != (None,), f"I11: member {member} enters {k} after a completed round"
        injected = sum(self.config.budget()) - sum(job.budget) + len(self.config.errors) + len(self.config.fails)
        assert k <= injected, f"I9: member {member} enters {k} after {injected} troubles"

    def _check_exit(self, job: Job, k: int) -> None:
        """Check that a decision names the exit of a lost member, if one has exited."""
        decision, record = self._decision(job, k), self._record(job, k)
        faults = [*record.event, *(arrival.fault for _, arrival in record.arrivals)]
        codes = {fault.exit_code for fault in faults if fault is not None and fault.initial_rank in decision.lost} - {0}
        code = decision.exit and decision.exit.exit_code
        told = f"I18: round {k} names exit code {code}, and its lost members have {codes}"
        assert code in codes if codes else code is None, told

    def _check_finish(self, job: Job, member: int, k: int) -> None:
        for other in self._members(job, k):
            found = self.seen(job, other)
            leaves_early = found.iteration < k == found.round and found.phase is RoundPhase.ARRIVED
            done = found.end or found.phase in (RoundPhase.COMPLETE, RoundPhase.FINISHED) or leaves_early
            assert done, f"I11: member {member} finishes {k}, and {other} does not"
        assert self._record(job, k).decision is None, f"I11: {k} was completed, and ended by a decision"

    # The job's parts

    def _step(self, job: Job, member: int, what: str, given: Any = None, key: Any = None) -> Job:
        number = job.members[member]
        following = self.members.step(number, what, given, key)
        after = job.member(member, following)
        if self.members.seen[following].phase is RoundPhase.FINISHED is not self.members.seen[number].phase:
            self._check_finish(job, member, self.members.seen[number].iteration)
        if self.config.hosted and member and self.members.seen[following].end == "finished":
            assert self._store_is_gone(after), f"I15: the next call of member {member} finds the store of this one"
        return after


Steps.rules = {
    requests.Await: Steps._await,
    requests.AwaitClients: Steps._clients,
    requests.AwaitHostClosed: Steps._host_closed,
    requests.BeginIteration: Steps._at_once,
    requests.CountOut: Steps._count_out,
    requests.DeleteIfOver: Steps._delete_if_over,
    requests.HostRendezvous: Steps._host,
    requests.LoseMembers: Steps._at_once,
    requests.MarkLeft: Steps._mark_left,
    requests.ReportFailure: Steps._report_failure,
    requests.RunFunction: Steps._function,
    AwaitKey: Steps._await_key,
    Operation: Steps._operation,
}
Steps.asks_store = frozenset({AwaitKey, Operation, requests.MarkLeft, requests.CountOut, requests.DeleteIfOver})
