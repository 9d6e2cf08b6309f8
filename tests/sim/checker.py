"""An explicit-state checker: every interleaving of a small job, over the real machines of a round.

Each rank has a main thread, a monitor thread and a monitor process, as the shells have them; a step is one store
operation, or one change that a crash could fall behind. The machines themselves are called once for each of their states
and inputs: states, inputs, actions and store records are numbered, so that a job's state is a tuple of small numbers.

`explore` visits every reachable state, asserts the invariants on the way, and demands at the end that every state from
which nothing can happen is one in which all is over, and that no run goes round in circles. So every run ends well.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from nvrx_core.errors import RankDiscarded
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.decision import Arrival, Decision, Standing
from nvrx_core.inprocess.fault import Fault
from nvrx_core.inprocess.interruption import Fire, InterruptionMachine, Seen
from nvrx_core.inprocess.round import (
    Abort,
    Action,
    Announce,
    Enter,
    Finish,
    Obituary,
    Phase,
    Round,
    RoundTimeouts,
)
from nvrx_core.rank_assignment.base import RankAssignmentCtx, State
from nvrx_core.rank_assignment.composition import assign
from nvrx_core.rank_assignment.moves import ShiftRanks

from .record import Answer, Record, Rules, feed

__all__ = ["Checker", "Config", "Figures", "Violation"]

TIMEOUTS: Final = RoundTimeouts(barrier=1e9, completion=1e9)

# What a rank's main thread is about. Small letters are final.
RUNNING, TELLING, COMPLETE, BARRIER, DECIDED, ASSIGNED, EARLY, AWAY = "RTCBDAEW"
FINISHED, LEFT, DEAD = "flx"
# What its monitor process is about.
WATCHES, SPEAKS, BURIES, ENDED, GONE = "wsbeg"


class Violation(AssertionError):
    """An invariant does not hold, or the job hangs."""


@dataclass(frozen=True)
class Config:
    """One job to explore: how many of each trouble may strike, anywhere.

    Attributes:
        ranks: how many members.
        crashes: processes that die, their monitor process living on.
        nodes: processes that die together with their monitor process.
        faults: exceptions of the function.
        leaves: exceptions by which a member leaves the job.
        hangs: soft timeouts, announced by the monitor process of a member that lives.
        kills: monitor processes killed and replaced.
        suspicions: times that a sibling takes a living member for dead.
        atomic: members that may be in atomic sections.
        ghosts: whether a crashed process's last operation may reach the store later.
        discards: (iteration, member): who is discarded by the rank assignment.
    """

    ranks: int
    crashes: int = 0
    nodes: int = 0
    faults: int = 0
    leaves: int = 0
    hangs: int = 0
    kills: int = 0
    suspicions: int = 0
    atomic: int = 0
    ghosts: bool = False
    discards: tuple[tuple[int, int], ...] = ()

    def budget(self) -> tuple[int, ...]:
        return self.crashes, self.nodes, self.faults, self.leaves, self.hangs, self.kills, self.suspicions


class Rank(NamedTuple):
    """One member. Machines, actions and faults by number.

    Attributes:
        at: what the main thread is about.
        round: the round of the monitor thread.
        old: the round of the main thread while the monitor thread is already in the next one, else -1.
        queue: store operations that the main thread has to do.
        atomic: the main thread is in an atomic section.
        aborted: the abort is done.
        iteration: of the progress page.
        known: the last round whose lost members the progress page knows.
        rank, world: the wrapper's, of the iteration.
        fault: this member's own in this round, -1 for none.
        leaving: it will leave at the barrier.
        monitor: what the monitor process is about.
        obituary: the machine that it plays, -1 for none.
        words: its store operations.
        spoken: (iteration, bits of members) it has spoken for.
        ghost: an operation of the dead process under way, -1 for none; with its machine's iteration.
    """

    at: str
    round: int
    old: int
    queue: tuple[int, ...]
    atomic: bool
    aborted: bool
    iteration: int
    known: int
    rank: int
    world: int
    fault: int
    leaving: bool
    monitor: str
    obituary: int
    words: tuple[int, ...]
    spoken: tuple[int, int]
    ghost: tuple[int, int] | None


class Job(NamedTuple):
    """A state of the whole."""

    ranks: tuple[Rank, ...]
    records: tuple[int, ...]
    budget: tuple[int, ...]


CRASH, NODE, FAULT, LEAVE, HANG, KILL, SUSPECT = range(7)


@dataclass
class Figures:
    """What an exploration found."""

    states: int = 0
    transitions: int = 0
    seconds: float = 0.0
    iterations: int = 0
    ends: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        speed = self.states / self.seconds
        return f"{self.states:,} states, {self.transitions:,} transitions, {self.iterations} iterations in {self.seconds:.1f} s ({speed:,.0f} states/s)"


class _Numbers:
    """Gives equal values the same number."""

    def __init__(self) -> None:
        self.of: dict[Any, int] = {}
        self.values: list[Any] = []

    def __call__(self, value: Any) -> int:
        number = self.of.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Checker:
    """Explores one job.

    Args:
        config: the job.
        rules: how the store carries out actions.
    """

    def __init__(self, config: Config, rules: type[Rules] = Rules) -> None:
        self.config, self.rules = config, rules
        self.machines, self.actions, self.records, self.faults = _Numbers(), _Numbers(), _Numbers(), _Numbers()
        self.empty = self.records(Record())
        self._moves: dict[tuple[Any, ...], tuple[int, tuple[int, ...]]] = {}
        self._performed: dict[tuple[int, int], tuple[int, Answer] | None] = {}
        self._assigned: dict[tuple[int, int, tuple[int, ...]], tuple[int, int]] = {}

    # The search

    def explore(self, limit: int = 5_000_000) -> Figures:
        """Visit every state.

        Raises:
            Violation: when an invariant breaks, or a run neither goes on nor is over; it tells the steps.
        """
        figures, begun = Figures(), time.perf_counter()
        first = self._first()
        number = {first: 0}
        states, parents, labels = [first], array("q", [-1]), [""]
        edges: list[array[int]] = []
        for here in range(limit):
            if here == len(states):
                break
            job, out = states[here], array("q")
            try:
                for label, following in self._steps(job):
                    found = number.setdefault(following, len(states))
                    if found == len(states):
                        states.append(following)
                        parents.append(here)
                        labels.append(label)
                    out.append(found)
                if not out:
                    self._over(job)
            except AssertionError as error:
                raise Violation(f"{error}\n{self._story(here, parents, labels)}\n{self._tell(job)}") from None
            edges.append(out)
            figures.transitions += len(out)
            if not out:
                end = "".join(sorted(rank.at for rank in job.ranks))
                figures.ends[end] = figures.ends.get(end, 0) + 1
        else:
            raise Violation(f"more than {limit} states")
        _forbid_circles(edges)
        figures.states, figures.iterations = len(states), max(len(job.records) for job in states) - 1
        figures.seconds = time.perf_counter() - begun
        return figures

    def _first(self) -> Job:
        members = frozenset(range(self.config.ranks))
        ranks = []
        for member in members:
            machine = Round(-1, member, members, TIMEOUTS)
            arrival = self._arrival(member, member, len(members), -1, Standing.ALIVE)
            queue = self._queue(machine.arrive(arrival, now=0.0))
            ranks.append(Rank(
                at=BARRIER, round=self.machines(machine.state()), old=-1, queue=queue, atomic=False, aborted=False,
                iteration=-1, known=-2, rank=member, world=len(members), fault=-1, leaving=False, monitor=WATCHES,
                obituary=-1, words=(), spoken=(-1, 0), ghost=None,
            ))  # fmt: skip
        return Job(tuple(ranks), (self.empty,), self.config.budget())

    def _story(self, here: int, parents: array[int], labels: list[str]) -> str:
        story = []
        while here > 0:
            story.append(labels[here])
            here = parents[here]
        return "\n".join(f"  {n}. {label}" for n, label in enumerate(reversed(story), 1))

    def _tell(self, job: Job) -> str:
        lines = [f"  rank {m}: {rank}" for m, rank in enumerate(job.ranks)]
        return "\n".join(lines + [f"  round {k}: {self.records.values[r]}" for k, r in enumerate(job.records, -1)])

    # The steps

    def _steps(self, job: Job) -> Iterator[tuple[str, Job]]:
        for member, rank in enumerate(job.ranks):
            if rank.at not in (FINISHED, LEFT, DEAD):
                yield from self._main_thread(job, member, rank)
                yield from self._monitor_thread(job, member, rank)
            yield from self._monitor_process(job, member, rank)
            yield from self._troubles(job, member, rank)
            if rank.ghost is not None:
                action, iteration = rank.ghost
                records, _ = self._perform(job.records, iteration, action)
                after = _with(job, member, rank._replace(ghost=None))._replace(records=records)
                yield f"{member}: a late operation arrives: {self._name(action)}", after

    def _main_thread(self, job: Job, member: int, rank: Rank) -> Iterator[tuple[str, Job]]:
        if rank.queue:
            yield self._play(job, member, rank)
        elif rank.at == RUNNING:
            yield from self._function(job, member, rank)
        elif rank.at == EARLY or rank.at == AWAY:
            yield f"{member}: leaves", _with(job, member, self._leave(rank))
        elif rank.at == DECIDED:
            yield f"{member}: is assigned", self._assign(job, member, rank)
        elif rank.at == ASSIGNED:
            yield f"{member}: enters", self._enter(job, member, rank)

    def _play(self, job: Job, member: int, rank: Rank) -> tuple[str, Job]:
        """The first operation of the main thread's queue."""
        action, machine = rank.queue[0], rank.old if rank.old >= 0 else rank.round
        iteration = self._round(machine)[0]
        records, answer = self._perform(job.records, iteration, action)
        after, more = self._move(machine, answer) if answer is not None else (machine, ())
        queue = rank.queue[1:] + more
        changed = {"old": after} if rank.old >= 0 else {"round": after}
        rank = rank._replace(queue=queue, **changed)
        if not queue:
            rank = self._idle(member, rank)
        return f"{member}: {self._name(action)} in {iteration}", _with(job, member, rank)._replace(records=records)

    def _idle(self, member: int, rank: Rank) -> Rank:
        """The main thread has nothing to write and waits on the monitor thread, which may have been faster."""
        phase = self._round(rank.round)[3]
        if rank.old >= 0 or (rank.at == BARRIER and phase is Phase.DECIDED):
            return rank._replace(at=DECIDED, old=-1)
        if rank.at == COMPLETE and phase is Phase.FINISHED:
            return rank._replace(at=FINISHED, monitor=self._ends(rank))
        if rank.at in (TELLING, COMPLETE) and rank.aborted:
            return self._arrive(member, rank)
        return rank

    def _function(self, job: Job, member: int, rank: Rank) -> Iterator[tuple[str, Job]]:
        if rank.atomic:
            left = rank._replace(atomic=False)
            yield f"{member}: leaves atomic", _with(job, member, self._interrupt(member, left))
            return
        if member < self.config.atomic and not rank.spoken[1] >> 8 & 1 and not rank.aborted:
            yield f"{member}: enters atomic", _with(job, member, rank._replace(atomic=True))
        done, queue = self._move(rank.round, ("completed", None))
        completed = rank._replace(at=COMPLETE, round=done, queue=queue)
        yield f"{member}: completes", _with(job, member, self._idle(member, completed) if not queue else completed)
        for kind, leaving in ((FAULT, False), (LEAVE, True)):
            if job.budget[kind]:
                fault = self._fault(member, rank.rank, Interruption.EXCEPTION)
                told, queue = self._move(rank.round, ("fault", fault))
                failed = rank._replace(at=TELLING, round=told, queue=queue, fault=self.faults(fault), leaving=leaving)
                failed = self._idle(member, failed) if not queue else failed
                yield f"{member}: {'leaves by an exception' if leaving else 'fails'}", _spend(job, kind, member, failed)

    def _arrive(self, member: int, rank: Rank) -> Rank:
        fault = self.faults.values[rank.fault] if rank.fault >= 0 else None
        standing = Standing.LEAVING if rank.leaving else Standing.ALIVE
        arrival = self._arrival(member, rank.rank, rank.world, rank.fault, standing, fault)
        machine, queue = self._move(rank.round, ("arrive", arrival))
        return rank._replace(at=BARRIER, round=machine, queue=queue)

    def _leave(self, rank: Rank) -> Rank:
        return rank._replace(at=LEFT, monitor=self._ends(rank))

    @staticmethod
    def _ends(rank: Rank) -> str:
        """The monitor process of a rank that has left; it ends what it is about first."""
        return ENDED if rank.monitor == WATCHES else rank.monitor

    # Between two rounds

    def _assign(self, job: Job, member: int, rank: Rank) -> Job:
        ended = rank.iteration
        decision = self._decision(job, ended)
        if rank.leaving or member in decision.lost:
            return _with(job, member, self._leave(rank))
        key = rank.rank, rank.world, decision.terminated
        place = self._assigned.get(key)
        if place is None:
            ctx = RankAssignmentCtx(State(rank.rank, rank.world), None, set(decision.terminated))  # type: ignore[arg-type]
            state = assign(ShiftRanks(), ctx).state
            place = self._assigned[key] = (state.rank, state.world_size)
        rank = rank._replace(known=ended, rank=place[0], world=place[1])
        gone = [m for k, m in self.config.discards if k == ended + 1 and m in self._members(job, ended + 1)]
        if member in gone:
            return _with(job, member, self._leave_early(member, rank))
        ranks = [self.config.ranks if m == member else job.ranks[m].rank for m in gone]
        shift = sum(1 for _ in ranks)
        below = sum(1 for m in gone if sorted(self._members(job, ended + 1)).index(m) < place[0])
        return _with(job, member, rank._replace(at=ASSIGNED, rank=place[0] - below, world=place[1] - shift))

    def _leave_early(self, member: int, rank: Rank) -> Rank:
        arrival = self._arrival(member, rank.rank, rank.world, -1, Standing.LEAVING)
        machine, queue = self._move(rank.round, ("leave", arrival))
        return rank._replace(at=EARLY, round=machine, queue=queue)

    def _enter(self, job: Job, member: int, rank: Rank) -> Job:
        k = rank.iteration + 1
        rank = rank._replace(at=RUNNING, iteration=k, fault=-1, spoken=rank.spoken)
        self._check_entry(job, member, rank)
        if rank.aborted:  # requested before the function was armed: raised at its first line
            rank = self._arrive(member, rank)
        return _with(job, member, rank)

    def _check_entry(self, job: Job, member: int, rank: Rank) -> None:
        k, members = rank.iteration, self._members(job, rank.iteration)
        assert member in members, f"I5: member {member} is out of the job and enters {k}"
        for i in range(-1, k):
            assert member not in self._decision(job, i).lost, f"I5: member {member} was lost in {i} and enters {k}"
        staying = sorted(members - {m for i, m in self.config.discards if i == k})
        assert rank.rank == staying.index(member), f"I1: member {member} is rank {rank.rank} of {staying} in {k}"
        assert rank.world == len(staying), f"I2: world size {rank.world} of {staying} in {k}"
        for other, found in enumerate(job.ranks):
            if found.at != DEAD and other in members:
                running = found.at in (RUNNING, TELLING, COMPLETE) and found.iteration < k
                assert not running, f"I3: member {member} enters {k} while {other} is still in {found.iteration}"
        for event in self._record(job, k - 1).event:
            assert event is not None, f"I11: member {member} enters {k}, and {k - 1} was completed"

    # The monitor thread

    def _monitor_thread(self, job: Job, member: int, rank: Rank) -> Iterator[tuple[str, Job]]:
        iteration, _, _, phase, _ = self._round(rank.round)
        record = self._record(job, iteration)
        if record.event and iteration >= 0 and phase in (Phase.OPEN, Phase.COMPLETE):
            yield self._event(job, member, rank, record.event[0])
        told = iteration < 0 or rank.aborted
        if told and record.decision and rank.at in (TELLING, COMPLETE, BARRIER) and rank.old < 0 and phase is not Phase.DECIDED:
            yield f"{member}: learns the decision of {iteration}", self._decided(job, member, rank, record.decision)

    def _event(self, job: Job, member: int, rank: Rank, event: Fault | None) -> tuple[str, Job]:
        machine, actions = self._move(rank.round, ("event", event))
        rank = rank._replace(round=machine)
        for action in map(self.actions.values.__getitem__, actions):
            if isinstance(action, Finish):
                self._check_finish(job, member)
                return f"{member}: all completed", _with(job, member, self._idle(member, rank) if not rank.queue else rank)
            if isinstance(action, Abort):
                rank = self._interrupt(member, rank)
        return f"{member}: notices the event", _with(job, member, rank)

    def _interrupt(self, member: int, rank: Rank) -> Rank:
        """Abort, and get the main thread out of the function, as far as the interruption's machine wants to."""
        if rank.aborted or self._round(rank.round)[3] is not Phase.INTERRUPTED:
            return rank
        seen = Seen(out=rank.at != RUNNING, masked=rank.atomic, raised=0, alive=False)
        fires = any(isinstance(action, Fire) for action in InterruptionMachine().tick(seen, now=0.0))
        if rank.atomic and not fires:
            return rank
        assert not rank.atomic, f"I4: member {member} is interrupted in an atomic section"
        rank = rank._replace(aborted=True)
        waits = rank.at in (TELLING, COMPLETE) and not rank.queue
        return self._arrive(member, rank) if rank.at == RUNNING or waits else rank

    def _check_finish(self, job: Job, member: int) -> None:
        k = job.ranks[member].iteration
        for other, found in enumerate(job.ranks):
            if other in self._members(job, k) and found.at != DEAD and other != member:
                done = found.at in (COMPLETE, FINISHED, EARLY, LEFT)
                assert done and found.iteration <= k, f"I11: member {member} finishes {k}, and {other} does not"
        assert self._record(job, k).decision is None, f"I11: {k} was completed, and ended by a decision"

    def _decided(self, job: Job, member: int, rank: Rank, decision: Decision) -> Job:
        machine, actions = self._move(rank.round, ("decided", decision))
        found = [self.actions.values[action] for action in actions]
        enter = next((action for action in found if isinstance(action, Enter)), None)
        if enter is None:  # the monitor thread ends; the main thread may still have to arrive
            state = self._round(machine)
            ended = self.machines((*state[:3], Phase.DECIDED, state[4]))
            rank = rank._replace(round=ended, leaving=rank.leaving)
            return _with(job, member, self._idle(member, rank) if not rank.queue else rank)
        following = Round(rank.iteration + 1, member, enter.members, TIMEOUTS)
        rank = rank._replace(old=machine, round=self.machines(following.state()), aborted=False)
        return _with(job, member, self._idle(member, rank) if not rank.queue else rank)

    # The monitor process

    def _monitor_process(self, job: Job, member: int, rank: Rank) -> Iterator[tuple[str, Job]]:
        if rank.monitor in (SPEAKS, BURIES):
            yield from self._obituary(job, member, rank)
        elif rank.monitor == WATCHES and rank.at not in (FINISHED, LEFT, DEAD):
            for other, found in enumerate(job.ranks):
                if other == member or other not in self._known_members(job, rank) or self._spoken(rank, other):
                    continue
                if found.monitor == GONE:
                    yield f"{member}: speaks for {other}", _with(job, member, self._speak(job, member, rank, other))
                elif job.budget[SUSPECT] and found.at not in (FINISHED, LEFT):
                    speaking = self._speak(job, member, rank, other)
                    yield f"{member}: takes {other} for dead", _spend(job, SUSPECT, member, speaking)

    def _obituary(self, job: Job, member: int, rank: Rank) -> Iterator[tuple[str, Job]]:
        machine: Obituary = self.machines.values[rank.obituary]
        iteration = machine.iteration
        who = f"{member}'s monitor"
        if rank.words:
            action = rank.words[0]
            records, answer = self._perform(job.records, iteration, action)
            after, more = self._mourn(rank.obituary, answer) if answer is not None else (rank.obituary, ())
            rank = rank._replace(obituary=after, words=rank.words[1:] + more)
            if not rank.words and rank.monitor == SPEAKS:
                rank = self._spoken_out(job, member, rank)
            yield f"{who}: {self._name(action)} in {iteration}", _with(job, member, rank)._replace(records=records)
            return
        record = self._record(job, iteration)
        if machine.finished:
            yield f"{who}: nobody waits for the dead", _with(job, member, rank._replace(monitor=ENDED, obituary=-1))
        elif record.decision is not None:
            yield f"{who}: learns the decision of {iteration}", self._follow(job, member, rank, record.decision)

    def _follow(self, job: Job, member: int, rank: Rank, decision: Decision) -> Job:
        machine, actions = self._mourn(rank.obituary, ("decided", decision))
        for action in map(self.actions.values.__getitem__, actions):
            if isinstance(action, Enter):
                following = self.machines.values[machine].obituary.next(action.members)
                return _with(job, member, self._begin_obituary(rank, following, BURIES))
        return _with(job, member, rank._replace(monitor=ENDED, obituary=-1))

    def _speak(self, job: Job, member: int, rank: Rank, other: int) -> Rank:
        fault = self._fault(other, -1, Interruption.UNRESPONSIVE)
        obituary = Obituary(rank.iteration, other, self._known_members(job, rank), fault)
        spoken = rank.spoken[1] if rank.spoken[0] == rank.iteration else 0
        return self._begin_obituary(rank._replace(spoken=(rank.iteration, spoken | 1 << other)), obituary, SPEAKS)

    @staticmethod
    def _spoken(rank: Rank, other: int) -> bool:
        return rank.spoken[0] == rank.iteration and bool(rank.spoken[1] >> other & 1)

    def _spoken_out(self, job: Job, member: int, rank: Rank) -> Rank:
        rank = rank._replace(monitor=WATCHES, obituary=-1)
        if rank.at in (FINISHED, LEFT):
            return rank._replace(monitor=ENDED)
        return self._bury(job, member, rank) if rank.at == DEAD else rank

    def _bury(self, job: Job, member: int, rank: Rank) -> Rank:
        """What a monitor process does that finds its rank dead; all that it knows is in the page."""
        fault = self._fault(member, rank.rank, Interruption.TERMINATED)
        return self._begin_obituary(rank, Obituary(rank.iteration, member, self._known_members(job, rank), fault), BURIES)

    def _begin_obituary(self, rank: Rank, obituary: Obituary, monitor: str) -> Rank:
        words = self._queue(obituary.died(now=0.0))
        return rank._replace(monitor=monitor, obituary=self.machines(_Mourner(obituary)), words=words)

    # Troubles

    def _troubles(self, job: Job, member: int, rank: Rank) -> Iterator[tuple[str, Job]]:
        if job.budget[KILL] and rank.monitor in (SPEAKS, BURIES):
            fresh = rank._replace(monitor=WATCHES, obituary=-1, words=(), spoken=(-1, 0))
            if rank.at in (FINISHED, LEFT):
                fresh = fresh._replace(monitor=ENDED)
            fresh = self._bury(job, member, fresh) if rank.at == DEAD else fresh
            yield f"{member}'s monitor: is killed and replaced", _spend(job, KILL, member, fresh)
        if rank.at in (FINISHED, LEFT, DEAD):
            return
        if job.budget[HANG] and rank.at == RUNNING and rank.monitor == WATCHES:
            fault = self._fault(member, rank.rank, Interruption.SOFT_TIMEOUT)
            obituary = Obituary(rank.iteration, member, self._known_members(job, rank), fault)
            late = rank._replace(monitor=SPEAKS, obituary=self.machines(_Mourner(obituary)), words=self._queue((Announce(fault),)))
            yield f"{member}: hangs", _spend(job, HANG, member, late)
        for kind in (CRASH, NODE):
            if job.budget[kind]:
                yield from self._crash(job, member, rank, kind)

    def _crash(self, job: Job, member: int, rank: Rank, kind: int) -> Iterator[tuple[str, Job]]:
        iteration = self._round(rank.old if rank.old >= 0 else rank.round)[0]
        dead = rank._replace(at=DEAD, queue=(), atomic=False, aborted=False, old=-1, round=self._nobody, fault=-1, leaving=False)
        if kind == NODE:
            dead = dead._replace(monitor=GONE, obituary=-1, words=(), spoken=(-1, 0))
        elif rank.monitor == WATCHES:
            dead = self._bury(job, member, dead)
        label = f"{member}: {'dies' if kind == CRASH else 'dies with its node'}"
        yield label, _spend(job, kind, member, dead)
        if self.config.ghosts and rank.queue:
            ghost = dead._replace(ghost=(rank.queue[0], iteration))
            yield f"{label}, and an operation is under way", _spend(job, kind, member, ghost)

    @property
    def _nobody(self) -> int:
        return self.machines(None)

    def _over(self, job: Job) -> None:
        for member, rank in enumerate(job.ranks):
            assert rank.at in (FINISHED, LEFT, DEAD), f"deadlock: member {member} waits for ever"
            assert rank.monitor in (ENDED, GONE), f"deadlock: the monitor process of member {member} waits for ever"
        finished = {rank.iteration for rank in job.ranks if rank.at == FINISHED}
        assert len(finished) <= 1, f"I11: members finish different iterations: {finished}"

    # Machines by number

    def _round(self, number: int) -> tuple[Any, ...]:
        state: tuple[Any, ...] = self.machines.values[number]
        return state

    def _move(self, machine: int, call: Answer) -> tuple[int, tuple[int, ...]]:
        """The round's state after a call, and the actions."""
        assert call is not None
        key = machine, call[0], _hashable(call[1])
        known = self._moves.get(key)
        if known is None:
            round_ = Round.from_state(self._round(machine), TIMEOUTS)
            method = getattr(round_, call[0])
            if call[0] in ("arrival_counted", "completion_counted", "arrivals_read") or call[1] is not None or call[0] == "event":
                actions = feed(round_, call, 0.0) if call[0] != "event" else method(call[1], now=0.0)
            else:
                actions = method(now=0.0)
            round_.check()
            known = self._moves[key] = self.machines(round_.state()), self._queue(actions)
        return known

    def _mourn(self, machine: int, call: Answer) -> tuple[int, tuple[int, ...]]:
        assert call is not None
        key = machine, call[0], _hashable(call[1])
        known = self._moves.get(key)
        if known is None:
            mourner: _Mourner = self.machines.values[machine]
            obituary = mourner.copy()
            actions = feed(obituary, call, 0.0)
            finished = mourner.finished or any(isinstance(action, Finish) for action in actions)
            rest = tuple(action for action in actions if not isinstance(action, Finish))
            known = self._moves[key] = self.machines(_Mourner(obituary, finished)), self._queue(rest)
        return known

    def _perform(self, records: tuple[int, ...], iteration: int, action: int) -> tuple[tuple[int, ...], Answer]:
        while iteration + 1 >= len(records):
            records += (self.empty,)
        key = records[iteration + 1], action
        known = self._performed.get(key)
        if known is None:
            before: Record = self.records.values[key[0]]
            done = self.rules.perform(before, self.actions.values[action])
            assert done is not None, f"not the store's: {self.actions.values[action]}"
            assert before.decision in (None, done[0].decision), f"I6: two decisions of iteration {iteration}"
            assert before.event in ((), done[0].event), f"I11: two events of iteration {iteration}"
            known = self._performed[key] = self.records(done[0]), done[1]
        place = iteration + 1
        return (*records[:place], known[0], *records[place + 1 :]), known[1]

    def _queue(self, actions: tuple[Action, ...]) -> tuple[int, ...]:
        return tuple(map(self.actions, actions))

    def _name(self, action: int) -> str:
        return type(self.actions.values[action]).__name__

    # What the store says

    def _record(self, job: Job, iteration: int) -> Record:
        place = iteration + 1
        record: Record = self.records.values[job.records[place] if place < len(job.records) else self.empty]
        return record

    def _decision(self, job: Job, iteration: int) -> Decision:
        decision = self._record(job, iteration).decision
        assert decision is not None
        return decision

    def _members(self, job: Job, iteration: int) -> frozenset[int]:
        """The members of a round."""
        members = frozenset(range(self.config.ranks))
        return members.difference(*(self._decision(job, k).lost for k in range(-1, iteration)))

    def _known_members(self, job: Job, rank: Rank) -> frozenset[int]:
        """The members as the progress page knows them."""
        return self._members(job, rank.known + 1)

    @staticmethod
    def _fault(member: int, rank: int, kind: Interruption) -> Fault:
        return Fault(initial_rank=member, rank=rank, interruption=kind.name)

    @staticmethod
    def _arrival(
        member: int, rank: int, world: int, _: int, standing: Standing, fault: Fault | None = None
    ) -> Arrival:
        return Arrival(initial_rank=member, rank=rank, standing=standing, world_size=world, fault=fault)
