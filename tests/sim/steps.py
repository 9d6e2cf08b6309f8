"""Every step that a small job can take from one of its states, over the real machines of a round.

Each rank has a main thread, a monitor thread and a monitor process, as the shells have them; a step is one store
operation, or one change behind which a crash could fall. The invariants are asserted where a step could break them.
One file, though a long one: the three parts of a rank change one state, and who reads one part needs the other two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.decision import Decision, Standing
from nvrx_core.inprocess.fault import Fault
from nvrx_core.inprocess.interruption import Fire, InterruptionMachine, Seen
from nvrx_core.inprocess.retry_limit import NoProgressLimit, NoProgressState
from nvrx_core.inprocess.round import Abort, Announce, Enter, Finish, GiveUp, Obituary, Phase, ReadEvent, Round
from nvrx_core.rank_assignment.base import RankAssignmentCtx, State
from nvrx_core.rank_assignment.composition import assign, leader
from nvrx_core.rank_assignment.moves import ShiftRanks

from .job import (
    BARRIER,
    BURIES,
    COMPLETE,
    CRASH,
    DEAD,
    DECIDED,
    ENDED,
    ERRING,
    FAULT,
    FINISHED,
    GONE,
    HANG,
    KILL,
    LEAVE,
    LEAVING,
    LEFT,
    MEETING,
    NODE,
    NOWHERE,
    OVER,
    QUIT,
    QUITTING,
    RUNNING,
    SPEAKS,
    SPENT,
    SUSPICION,
    TELLING,
    WATCHES,
    Config,
    Job,
    Rank,
    Step,
    arrival_of,
    end,
    end_monitor,
    fault_of,
)
from .numbers import Mourner, Numbers, Tables
from .record import TIMEOUTS, Record, SayWhere

__all__ = ["Steps"]

NO_STORE: Any = None  # the built-in assignments ask nothing of it


class Steps:
    """The steps of one job.

    Args:
        config: the job.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.tables = config, Tables()
        self._failures = Numbers()
        self._failures(NoProgressState())
        (self._nowhere,) = self.tables.queue((SayWhere(""),))  # type: ignore[arg-type]
        self._reads = self.tables.queue((ReadEvent(),))
        self._places: dict[tuple[int, int, tuple[int, ...]], tuple[int, int]] = {}

    def first(self) -> Job:
        """All have arrived at the barrier before the first iteration, and none has said so yet."""
        members = frozenset(range(self.config.ranks))
        ranks = []
        for member in sorted(members):
            machine = self.tables.machines(Round(-1, member, members, TIMEOUTS).state())
            ranks.append(self._arrive(member, Rank(BARRIER, machine, member, len(members), ())))
        return Job(tuple(ranks), (self.tables.empty,), self.config.budget())

    def of(self, job: Job) -> Iterator[Step]:
        """What can happen next."""
        for member, rank in enumerate(job.ranks):
            if rank.at not in OVER:
                yield from self._main_thread(job, member, rank)
                yield from self._monitor_thread(job, member, rank)
                yield from self._troubles(job, member, rank)
            yield from self._monitor_process(job, member, rank)
            if rank.ghost is not None:
                label = f"{member}: its last {self.tables.name(rank.ghost[0])} arrives late"
                yield label, self._store(job.rank(member, rank._replace(ghost=None)), *rank.ghost)[0]

    def check_end(self, job: Job) -> tuple[str, ...]:
        """Check a state from which nothing can happen; returns how each member ended."""
        for member, rank in enumerate(job.ranks):
            assert rank.at in OVER, f"deadlock: member {member} waits for ever"
            assert rank.monitor in (ENDED, GONE), f"deadlock: the monitor process of member {member} waits for ever"
        spent = {rank.iteration for rank in job.ranks if rank.at == SPENT}
        finished = any(rank.at == FINISHED for rank in job.ranks)
        assert len(spent) + finished <= 1, "I11: the retry limit differs from member to member"
        return tuple(f"{rank.at} {rank.iteration}" for rank in job.ranks)

    def picture(self, job: Job) -> str:
        """The state, for people."""
        lines = [f"  member {member}: {rank}" for member, rank in enumerate(job.ranks)]
        records = [f"  round {k}: {self.tables.records.values[number]}" for k, number in enumerate(job.records, -1)]
        return "\n".join(lines + records)

    def _store(self, job: Job, action: int, iteration: int) -> tuple[Job, tuple[str, object] | None]:
        """Carry out one operation."""
        records, place = job.records, iteration + 1
        records += (self.tables.empty,) * (place + 1 - len(records))
        record, answer = self.tables.perform(records[place], action)
        return job._replace(records=(*records[:place], record, *records[place + 1 :])), answer

    def _iteration(self, machine: int) -> int:
        iteration: int = self.tables.machines.values[machine][0]
        return iteration

    def _phase(self, rank: Rank) -> Phase:
        phase: Phase = self.tables.machines.values[rank.round][3]
        return phase

    # The main thread

    def _main_thread(self, job: Job, member: int, rank: Rank) -> Iterator[Step]:
        if rank.queue:
            yield self._play(job, member, rank)
        elif rank.at == RUNNING:
            yield from self._function(job, member, rank)
        elif rank.at == ERRING:
            yield f"{member}: leaves early", job.rank(member, self._leave(member, rank))
        elif rank.at == LEAVING:
            yield f"{member}: leaves", job.rank(member, end(rank, LEFT))
        elif rank.at == DECIDED:
            yield f"{member}: is assigned", job.rank(member, self._assign(job, member, rank))
        elif rank.at == MEETING:
            yield from self._meet(job, member, rank)
        elif rank.at == QUITTING:
            known = (
                rank.own >= 0 or rank.expelled or self._record(job, self._iteration(rank.round)).decision is not None
            )
            after = self._wait(member, rank._replace(at=BARRIER)) if known else end(rank, LEFT)
            yield f"{member}: {'stays' if known else 'leaves the barrier'}", job.rank(member, after)
        elif job.budget[QUIT] and rank.at == BARRIER and rank.own < 0 and not rank.expelled:
            yield f"{member}: gives up in the barrier", job.spend(QUIT).rank(member, self._quit(member, rank))
        elif job.budget[QUIT] and rank.at == COMPLETE and self._phase(rank) is Phase.COMPLETE:
            machine, _ = self.tables.move(rank.round, "tick")
            machine, _ = self.tables.move(machine, "held_up", {})
            machine, queue = self.tables.move(machine, "fault", fault_of(member, rank.rank, Interruption.EXCEPTION))
            yield f"{member}: waits no longer", job.spend(QUIT).rank(member, rank._replace(round=machine, queue=queue))

    def _play(self, job: Job, member: int, rank: Rank) -> Step:
        action, machine = rank.queue[0], rank.own if rank.own >= 0 else rank.round
        iteration = self._iteration(machine)
        after, answer = self._store(job, action, iteration)
        more: tuple[int, ...] = ()
        if answer is not None and (answer[0] != "event" or isinstance(self.tables.machines.values[machine], Mourner)):
            machine, more = self.tables.move(machine, *answer)
        rank = rank._replace(own=machine) if rank.own >= 0 else rank._replace(round=machine)
        rank = rank._replace(queue=rank.queue[1:] + more)
        return f"{member}: {self.tables.name(action)} in {iteration}", after.rank(member, self._wait(member, rank))

    def _wait(self, member: int, rank: Rank) -> Rank:
        """The main thread waits on the monitor thread, which may have been faster."""
        if rank.queue:
            return rank
        if rank.at == BARRIER and (rank.own >= 0 or rank.expelled):
            return rank._replace(at=DECIDED, own=-1)
        if rank.at == COMPLETE and self._phase(rank) is Phase.FINISHED:
            return end(rank, FINISHED)
        if rank.at in (TELLING, COMPLETE, NOWHERE) and rank.aborted:
            return self._arrive(member, rank)
        return rank

    def _function(self, job: Job, member: int, rank: Rank) -> Iterator[Step]:
        if rank.section == 1:
            after = self._interrupt(member, rank._replace(section=2))
            yield f"{member}: leaves its atomic section", job.rank(member, after)
            return
        if member < self.config.atomic and rank.section == 0 and self._phase(rank) is not Phase.INTERRUPTED:
            yield f"{member}: enters an atomic section", job.rank(member, rank._replace(section=1))
        if not rank.place or self._record(job, rank.iteration).master == rank.place:  # else it waits to meet the others
            machine, queue = self.tables.move(rank.round, "completed")
            done = self._wait(member, rank._replace(at=COMPLETE, round=machine, queue=queue))
            yield f"{member}: completes", job.rank(member, done)
        for trouble in (FAULT, LEAVE):
            if job.budget[trouble]:
                fault = fault_of(member, rank.rank, Interruption.EXCEPTION)
                machine, queue = self.tables.move(rank.round, "fault", fault)
                told = rank._replace(at=TELLING, round=machine, queue=queue, fault=fault, leaving=trouble == LEAVE)
                how = "fails" if trouble == FAULT else "leaves by an exception"
                yield f"{member}: {how}", job.spend(trouble).rank(member, self._wait(member, told))

    def _arrive(self, member: int, rank: Rank) -> Rank:
        standing = Standing.LEAVING if rank.leaving else Standing.ALIVE
        place = "" if self.config.asks or rank.leaving else f"node{member}:1"
        machine, queue = self.tables.move(rank.round, "arrive", arrival_of(member, rank, standing, place))
        return rank._replace(at=BARRIER, round=machine, queue=queue, place="")

    # Between two rounds

    def _assign(self, job: Job, member: int, rank: Rank) -> Rank:
        k, decision = rank.iteration, self._decision(job, rank.iteration)
        if rank.leaving or member in decision.lost:
            return end(rank, LEFT)
        if self.config.limit and decision.cause is not None:
            known = NoProgressLimit.from_state(self.config.limit, self._failures.values[rank.failures])
            verdict = known.iteration_ended(error_type=decision.cause.interruption, origin="", step=None, culprit=None)
            if verdict.reached:
                return end(rank, SPENT)
            rank = rank._replace(failures=self._failures(known.state()))
        if (k + 1, member) in self.config.errors:
            return self._err(member, rank)
        place = self._place(rank, decision)
        gone = self._discarded(job, k + 1)
        if member in gone:
            return self._leave(member, rank)
        below = sum(other < member for other in gone)
        world = place[1] - len(gone)
        known = None if self.config.discards else leader(ShiftRanks(), rank.world, decision.terminated)
        where = decision.place_of(known)
        rank = rank._replace(at=MEETING, known=k, rank=place[0] - below, world=world)
        if k < 0:
            return self._enter(job, member, rank)
        rank = rank._replace(place=f"{where[0]}:{where[1]}" if where else "")
        return rank._replace(queue=self._host(member)) if rank.rank == 0 else rank

    def _host(self, member: int) -> tuple[int, ...]:
        """Host the process group's meeting; where the ranks ask, tell them."""
        return self.tables.queue((SayWhere(f"node{member}:1"),))  # type: ignore[arg-type]

    def _meet(self, job: Job, member: int, rank: Rank) -> Iterator[Step]:
        """Enter the function when it is known where its process group meets."""
        place = rank.place or self._record(job, rank.iteration + 1).master
        if place:
            at = RUNNING if place != "-" else NOWHERE
            entered = self._enter(job, member, rank._replace(place=place), at)
            yield f"{member}: enters {rank.iteration + 1}", job.rank(member, entered)

    def _quit(self, member: int, rank: Rank) -> Rank:
        """The barrier has timed out: tell, and leave unless there is a decision after all."""
        machine, _ = self.tables.move(rank.round, "tick")
        machine, queue = self.tables.move(machine, "held_up", {})
        stores = tuple(each for each in queue if not isinstance(self.tables.actions.values[each], GiveUp))
        assert len(stores) < len(queue), f"{member} does not give up"
        return rank._replace(at=QUITTING, round=machine, queue=stores)

    def _leave(self, member: int, rank: Rank) -> Rank:
        """Leave the round that the monitor thread is in before it has begun here."""
        machine, queue = self.tables.move(rank.round, "leave", arrival_of(member, rank, Standing.LEAVING))
        return rank._replace(at=LEAVING, known=rank.iteration, round=machine, queue=queue)

    def _err(self, member: int, rank: Rank) -> Rank:
        """The rank assignment failed here alone: the others count on this member, so they must be told."""
        fault = fault_of(member, rank.rank, Interruption.EXCEPTION)
        machine, queue = self.tables.move(rank.round, "fault", fault)
        queue += (self._nowhere,)
        return rank._replace(at=ERRING, known=rank.iteration, round=machine, queue=queue, fault=fault)

    def _place(self, rank: Rank, decision: Decision) -> tuple[int, int]:
        key = rank.rank, rank.world, decision.terminated
        if key not in self._places:
            state = State(rank.rank, rank.world)
            assign(ShiftRanks(), RankAssignmentCtx(state, NO_STORE, set(decision.terminated)))
            self._places[key] = state.rank, state.world_size
        return self._places[key]

    def _enter(self, job: Job, member: int, rank: Rank, at: str = RUNNING) -> Rank:
        rank = rank._replace(at=at, iteration=rank.iteration + 1, fault=None, section=0)
        self._check_entry(job, member, rank)
        return self._arrive(member, rank) if rank.aborted else rank  # asked for before its first line: raised there

    def _check_entry(self, job: Job, member: int, rank: Rank) -> None:
        k, members = rank.iteration, self._members(job, rank.iteration)
        assert member in members, f"I5: member {member} is out of the job and enters {k}"
        staying = sorted(members - self._discarded(job, k))
        assert rank.rank == staying.index(member), f"I1: member {member} enters {k} as rank {rank.rank} of {staying}"
        assert rank.world == len(staying), f"I2: member {member} enters {k} with world size {rank.world} of {staying}"
        assert self._iteration(rank.round) == k, f"I7: member {member} enters {k} in another round"
        for other in members:
            found = job.ranks[other]
            inside = found.iteration < k and found.at in (RUNNING, NOWHERE, TELLING, COMPLETE)
            assert not inside, f"I3: member {member} enters {k} before {other} has left {found.iteration}"
        assert self._record(job, k - 1).event != (None,), f"I11: member {member} enters {k} after a completed round"
        struck = sum(self.config.budget()) - sum(job.budget) + len(self.config.errors)
        assert k <= struck, f"I9: member {member} enters {k} after {struck} troubles"

    # The monitor thread

    def _monitor_thread(self, job: Job, member: int, rank: Rank) -> Iterator[Step]:
        iteration, phase = self._iteration(rank.round), self._phase(rank)
        record = self._record(job, iteration)
        if record.event and iteration >= 0 and phase in (Phase.OPEN, Phase.COMPLETE):
            yield f"{member}: learns the event of {iteration}", self._event(job, member, rank, record.event[0])
        out = iteration < 0 or (rank.aborted and rank.at in (TELLING, COMPLETE, BARRIER, QUITTING))
        old = self._record(job, iteration - 1).decision
        stale = old and rank.own < 0 and self.tables.move(rank.round, "decided", old)[1]
        assert not stale, f"I8: {member} acts in {iteration} on the decision of the round before"
        if record.decision and out and rank.own < 0 and not rank.expelled:
            yield f"{member}: learns the decision of {iteration}", self._decided(job, member, rank, record.decision)

    def _event(self, job: Job, member: int, rank: Rank, event: Fault | None) -> Job:
        """The event is there, and is read by a member that has completed: what it says does not change meanwhile."""
        machine, actions = self.tables.move(rank.round, "happened")
        assert event or actions == self._reads, f"I11: a round is completed that member {member} has not completed"
        if actions == self._reads:
            machine, actions = self.tables.move(machine, "event", event)
        rank = rank._replace(round=machine)
        for action in map(self.tables.actions.values.__getitem__, actions):
            if isinstance(action, Finish):
                self._check_finish(job, member, rank.iteration)
                rank = self._wait(member, rank)
            elif isinstance(action, Abort):
                rank = self._interrupt(member, rank)
        return job.rank(member, rank)

    def _interrupt(self, member: int, rank: Rank) -> Rank:
        """Abort and get the main thread out of the function, when the interruption's machine says so."""
        if rank.aborted or self._phase(rank) is not Phase.INTERRUPTED:
            return rank
        masked = rank.at == RUNNING and rank.section == 1
        seen = Seen(out=False, masked=masked, raised=0, alive=False)
        if not any(isinstance(action, Fire) for action in InterruptionMachine(unwind=10.0).tick(seen, now=0.0)):
            return rank
        assert not masked, f"I4: member {member} is interrupted in an atomic section"
        rank = rank._replace(aborted=True)
        return self._arrive(member, rank) if rank.at == RUNNING else self._wait(member, rank)

    def _check_finish(self, job: Job, member: int, k: int) -> None:
        for other in self._members(job, k):
            found = job.ranks[other]
            done = found.at in (COMPLETE, *OVER) or (found.at == LEAVING and found.iteration < k)
            assert done, f"I11: member {member} finishes {k}, and {other} does not"
        assert self._record(job, k).decision is None, f"I11: {k} was completed, and ended by a decision"

    def _decided(self, job: Job, member: int, rank: Rank, decision: Decision) -> Job:
        machine, actions = self.tables.move(rank.round, "decided", decision)
        for action in map(self.tables.actions.values.__getitem__, actions):
            if isinstance(action, Enter):
                following = Round(self._iteration(machine) + 1, member, action.members, TIMEOUTS)
                number = self.tables.machines(following.state())
                return job.rank(member, self._wait(member, rank._replace(own=machine, round=number, aborted=False)))
        return job.rank(member, self._wait(member, rank._replace(round=machine, expelled=True)))

    # The monitor process

    def _monitor_process(self, job: Job, member: int, rank: Rank) -> Iterator[Step]:
        if rank.monitor in (SPEAKS, BURIES):
            if (step := self._mourn(job, member, rank)) is not None:
                yield step
            if job.budget[KILL]:
                fresh = rank._replace(spoken=())
                yield f"{member}'s monitor is replaced", job.spend(KILL).rank(member, self._watch(job, member, fresh))
        elif rank.monitor == WATCHES and rank.at not in OVER:
            spoken = dict(rank.spoken)
            for other in self._known(job, rank) - {member}:
                found = job.ranks[other]
                if not self._speaks_again(job, rank, other, spoken.get(other)):
                    continue
                speaking = rank._replace(spoken=tuple(sorted({**spoken, other: rank.iteration}.items())))
                if found.monitor == GONE:
                    yield f"{member} speaks for {other}", job.rank(member, self._speak(job, speaking, other))
                elif job.budget[SUSPICION] and found.at not in (FINISHED, LEFT):
                    after = job.spend(SUSPICION).rank(member, self._speak(job, speaking, other))
                    yield f"{member} takes {other} for dead", after

    def _mourn(self, job: Job, member: int, rank: Rank) -> Step | None:
        """One step of the obituary that the monitor process plays; none while it waits for a decision."""
        state: Mourner = self.tables.machines.values[rank.obituary]
        if rank.words:
            after, answer = self._store(job, rank.words[0], state.iteration)
            heard = answer is not None and not state.finished  # who only announces a hang is told nothing
            machine, more = self.tables.move(rank.obituary, *answer) if heard else (rank.obituary, ())  # type: ignore[misc]
            label = f"{member}'s monitor: {self.tables.name(rank.words[0])} in {state.iteration}"
            rank = rank._replace(obituary=machine, words=more + rank.words[1:])
            over = not rank.words and self.tables.machines.values[machine].finished
            if not rank.words and rank.monitor == SPEAKS and not over:
                rank = self._follow(after, member, rank, self.tables.machines.values[machine])
        else:
            after, decision = job, self._record(job, state.iteration).decision
            if decision is None:
                return self._part(job, member, rank)
            label = f"{member}'s monitor learns the decision of {state.iteration}"
            machine, actions = self.tables.move(rank.obituary, "decided", decision)
            action = self.tables.actions.values[actions[0]]
            over = not isinstance(action, Enter)
            if isinstance(action, Enter):
                rank = self._play_obituary(rank, BURIES, state.obituary().next(action.members))
        if over and rank.monitor != WATCHES:
            rank = self._watch(job, member, rank) if rank.monitor == SPEAKS else end_monitor(rank)
        return label, after.rank(member, rank)

    def _part(self, job: Job, member: int, rank: Rank) -> Step | None:
        """The wait for a decision ends with the last rank, which takes the store along, or after `barrier_timeout`."""
        if all(each.at in OVER for each in job.ranks):
            return f"{member}'s monitor waits no longer", job.rank(member, end_monitor(rank))
        return None

    def _speaks_again(self, job: Job, rank: Rank, other: int, before: int | None) -> bool:
        """Whether there is something to say for a silent member, after it was said in the round `before`."""
        if before is None or before < rank.iteration:
            return True
        decision = self._record(job, before).decision
        return decision is not None and other not in decision.lost and job.ranks[other].monitor == GONE

    def _follow(self, job: Job, member: int, rank: Rank, state: Mourner) -> Rank:
        """What was said for a silent member is said in the next round, too, if this one has counted it as living."""
        decision, other = self._record(job, state.iteration).decision, state.member
        actions = state.obituary().decided(decision, now=0.0) if decision is not None else ()
        if actions and isinstance(actions[0], Enter) and job.ranks[other].monitor == GONE:
            following = state.obituary().next(actions[0].members)
            spoken = tuple(sorted({**dict(rank.spoken), other: following.iteration}.items()))
            return self._play_obituary(rank._replace(spoken=spoken), SPEAKS, following)
        return self._watch(job, member, rank)

    def _watch(self, job: Job, member: int, rank: Rank) -> Rank:
        """What a monitor process is about that knows nothing but the progress page."""
        rank = rank._replace(monitor=WATCHES, obituary=-1, words=())
        if rank.at in (FINISHED, LEFT, SPENT):
            return end_monitor(rank)
        if rank.at != DEAD:
            return rank
        fault = fault_of(member, rank.rank, Interruption.TERMINATED)
        return self._play_obituary(rank, BURIES, Obituary(rank.iteration, member, self._known(job, rank), fault))

    def _speak(self, job: Job, rank: Rank, other: int) -> Rank:
        fault = fault_of(other, -1, Interruption.UNRESPONSIVE)
        return self._play_obituary(rank, SPEAKS, Obituary(rank.iteration, other, self._known(job, rank), fault))

    def _play_obituary(self, rank: Rank, monitor: str, obituary: Obituary) -> Rank:
        words = (*self.tables.queue(obituary.died(now=0.0)), self._nowhere)
        return rank._replace(monitor=monitor, obituary=self.tables.machines(Mourner.of(obituary)), words=words)

    # Troubles

    def _troubles(self, job: Job, member: int, rank: Rank) -> Iterator[Step]:
        if job.budget[HANG] and rank.at == RUNNING and rank.monitor == WATCHES:
            fault = fault_of(member, rank.rank, Interruption.SOFT_TIMEOUT)
            obituary = Mourner.of(Obituary(rank.iteration, member, self._known(job, rank), fault), finished=True)
            told = self.tables.queue((Announce(fault),))
            late = rank._replace(monitor=SPEAKS, obituary=self.tables.machines(obituary), words=told)
            yield f"{member}'s monitor takes it for hung", job.spend(HANG).rank(member, late)
        for trouble in (CRASH, NODE):
            if job.budget[trouble]:
                label = f"{member} dies" if trouble == CRASH else f"{member} and its monitor die"
                dead = self._die(job, member, rank, trouble)
                yield label, job.spend(trouble).rank(member, dead)
                if self.config.ghosts and rank.queue:
                    iteration = self._iteration(rank.own if rank.own >= 0 else rank.round)
                    late = dead._replace(ghost=(rank.queue[0], iteration))
                    yield f"{label}, an operation under way", job.spend(trouble).rank(member, late)

    def _die(self, job: Job, member: int, rank: Rank, trouble: int) -> Rank:
        nobody = self.tables.machines(())
        dead = Rank(DEAD, nobody, rank.rank, rank.world, (), iteration=rank.iteration, known=rank.known)
        if trouble == NODE:
            return dead._replace(monitor=GONE)
        if rank.monitor == WATCHES:
            return self._watch(job, member, dead)
        return dead._replace(monitor=rank.monitor, obituary=rank.obituary, words=rank.words, spoken=rank.spoken)

    # What the store says

    def _record(self, job: Job, iteration: int) -> Record:
        place = iteration + 1
        number = job.records[place] if 0 <= place < len(job.records) else self.tables.empty
        record: Record = self.tables.records.values[number]
        return record

    def _decision(self, job: Job, iteration: int) -> Decision:
        decision = self._record(job, iteration).decision
        assert decision is not None
        return decision

    def _members(self, job: Job, iteration: int) -> frozenset[int]:
        """The members of a round."""
        members = frozenset(range(self.config.ranks))
        return members.difference(*(self._decision(job, k).lost for k in range(-1, iteration)))

    def _known(self, job: Job, rank: Rank) -> frozenset[int]:
        """The members, as the progress page knows them."""
        return self._members(job, rank.known + 1)

    def _discarded(self, job: Job, iteration: int) -> frozenset[int]:
        """Whom the rank assignment discards before this round."""
        return self._members(job, iteration) & {member for k, member in self.config.discards if k == iteration}
