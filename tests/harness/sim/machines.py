"""Hypothesis state machines: any order of inputs to a production machine, shrunk to the shortest that breaks a rule.

They are much slower than the checker and the simulation, but give failures that are easy to read.
"""

from __future__ import annotations

import math
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.interruption.landing import Landing
from nvrx_core.inprocess.interruption.policy import BLOCKED, MAX_REPEAT, Fire, InterruptPolicy, Seen, Why
from nvrx_core.inprocess.protocol.actions import Action, Enter, Finish, ReadEvent
from nvrx_core.inprocess.protocol.death_report import DeathReport
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus
from nvrx_core.inprocess.protocol.round import Round, RoundTimeouts
from nvrx_core.inprocess.protocol.transitions import TRANSITIONS, Input, Phase
from nvrx_core.liveness.hang_detector import (
    HangDetector,
    Kill,
    ProgressSample,
    QueryPeers,
    SendSignal,
    SoftTimeout,
    Terminate,
)
from nvrx_core.liveness.lease import LeaseTable
from nvrx_core.progress.stage import Stage

from .slots import Slots

__all__ = ["MACHINES", "SETTINGS", "Interrupting", "Leases", "Rounds", "Watching"]

SETTINGS = settings(max_examples=500, stateful_step_count=40, deadline=None, database=None)
TIMEOUTS = RoundTimeouts(barrier=1e9, completion=1e9)
MOST = 3


class Rounds(RuleBasedStateMachine):
    """Rounds of up to three members on one store; each death is reported, and in the end all members finish."""

    @initialize(size=st.integers(2, MOST))
    def begin(self, size: int) -> None:
        self.members = frozenset(range(size))
        self.slots: dict[int, Slots] = {}
        self.rounds = {member: Round(-1, member, self.members, TIMEOUTS) for member in self.members}
        self.ended = dict[int, str]()
        self.obituaries = dict[int, DeathReport]()
        self.entered: dict[int, set[int]] = {}
        self.faults = 0
        for member in self.members:
            self.arrive(member)

    def slot(self, iteration: int) -> Slots:
        return self.slots.setdefault(iteration, Slots())

    def play(self, machine: Round | DeathReport, actions: tuple[Action, ...]) -> bool:
        """Carry out actions; whether the machine is done."""
        pending, done = list(actions), False
        for action in pending:
            if isinstance(action, Finish):
                done = True
                continue
            answer = self.slot(machine.iteration).perform(action)
            if answer is not None:
                pending += getattr(machine, answer[0])(*answer[1:], now=0.0)
        return done

    def living(self) -> list[int]:
        return [member for member in sorted(self.members) if member not in self.ended]

    def pick(self, number: int) -> int | None:
        living = self.living()
        return living[number % len(living)] if living else None

    def arrive(self, member: int, status: ArrivalStatus = ArrivalStatus.ALIVE) -> None:
        arrival = Arrival(initial_rank=member, rank=member, status=status, world_size=len(self.members))
        self.play(self.rounds[member], self.rounds[member].arrive(arrival, now=0.0))

    @rule(number=st.integers(0, MOST))
    def fail(self, number: int) -> None:
        member = self.pick(number)
        if member is not None and self.comes(Input.FAULT, member) and self.faults < 4:
            self.faults += 1
            fault = FaultRecord(initial_rank=member, rank=member, interruption="EXCEPTION")
            phase = self.rounds[member].phase
            actions = self.rounds[member].fault(fault, now=0.0)
            assert bool(actions) == (phase in (Phase.OPEN, Phase.COMPLETE)), "a fault that is kept to oneself"
            self.play(self.rounds[member], actions)

    @rule(number=st.integers(0, MOST))
    def complete(self, number: int) -> None:
        member = self.pick(number)
        if member is not None and self.comes(Input.COMPLETED, member):
            self.play(self.rounds[member], self.rounds[member].completed(now=0.0))

    def comes(self, kind: Input, member: int) -> bool:
        """Whether the input can come to this member, as far as its round is."""
        round_ = self.rounds[member]
        return round_.iteration >= 0 and round_.phase in TRANSITIONS[kind]

    @rule(number=st.integers(0, MOST))
    def die(self, number: int) -> None:
        member = self.pick(number)
        if member is not None and len(self.living()) > 1 and self.faults < 4:
            self.faults += 1
            round_ = self.rounds[member]
            fault = FaultRecord(initial_rank=member, rank=member, interruption="TERMINATED")
            self.ended[member] = "dead"
            self.obituaries[member] = DeathReport(round_.iteration, member, round_.members, fault)
            self.tell(member)

    def tell(self, member: int) -> None:
        obituary = self.obituaries[member]
        if self.play(obituary, obituary.died(now=0.0)):
            del self.obituaries[member]

    @rule(number=st.integers(0, MOST), late=st.booleans())
    def hear(self, number: int, late: bool) -> None:
        member = self.pick(number)
        if member is not None:
            self.listen(member)
            if late:  # what was heard before changes nothing
                before = self.rounds[member].state()
                old = self.slot(before[0] - 1).decision
                assert old is None or not self.rounds[member].decided(old, now=0.0), "I8: a stale decision counts"
                assert self.rounds[member].state() == before

    def listen(self, member: int) -> None:
        round_ = self.rounds[member]
        slot = self.slot(round_.iteration)
        if slot.event and round_.phase in (Phase.OPEN, Phase.COMPLETE) and round_.iteration >= 0:
            actions = round_.happened(now=0.0)
            if actions == (ReadEvent(),):
                actions = round_.event(slot.event[0], now=0.0)
            if any(isinstance(action, Finish) for action in actions):
                self.ended[member] = f"finished {round_.iteration}"
            else:
                self.arrive(member)
        elif slot.decision is not None and round_.phase is Phase.ARRIVED:
            (action,) = round_.decided(slot.decision, now=0.0)
            if isinstance(action, Enter):
                self.enter(member, action)
            else:
                self.ended[member] = "left"

    def enter(self, member: int, action: Enter) -> None:
        k = self.rounds[member].iteration + 1
        for i in range(-1, k):
            lost = self.slot(i).decision.lost  # type: ignore[union-attr]
            assert member not in lost, f"I5: {member} was lost in {i}, and enters {k}"
        assert member in action.members, f"I5: {member} enters {k} and is no member"
        assert k <= self.faults, f"I9: {member} enters {k} after {self.faults} faults"
        for other in self.living():
            behind = self.rounds[other].iteration < k - 1
            assert not behind, f"I3: {member} enters {k}, and {other} is in {self.rounds[other].iteration}"
        agreed = {frozenset(self.rounds[other].members) for other in self.entered.setdefault(k, set())
                  if self.rounds[other].iteration == k}  # fmt: skip
        assert agreed <= {action.members}, f"I2: the members of {k} differ: {agreed}, {action.members}"
        self.entered[k].add(member)
        self.rounds[member] = Round(k, member, action.members, TIMEOUTS)

    @rule()
    def mourn(self) -> None:
        for member, obituary in list(self.obituaries.items()):
            decision = self.slot(obituary.iteration).decision
            if decision is not None:
                (action,) = obituary.decided(decision, now=0.0)
                del self.obituaries[member]
                if isinstance(action, Enter):
                    assert obituary.iteration < 20, "an obituary without end"
                    self.obituaries[member] = obituary.next(action.members)
                    self.tell(member)

    @invariant()
    def sound(self) -> None:
        for member, round_ in getattr(self, "rounds", {}).items():
            round_.check()
            again = Round.from_state(round_.state(), TIMEOUTS)
            assert again.state() == round_.state(), f"{member}: not the same after a round trip"
        finished = {end for end in getattr(self, "ended", {}).values() if end.startswith("finished")}
        assert len(finished) <= 1, f"I11: {finished}"

    def teardown(self) -> None:
        """No more faults: every member must finish."""
        for _ in range(40 if hasattr(self, "rounds") else 0):
            self.mourn()
            for member in self.living():
                if self.comes(Input.COMPLETED, member):
                    self.play(self.rounds[member], self.rounds[member].completed(now=0.0))
                self.listen(member)
        if hasattr(self, "rounds"):
            assert not self.living(), f"deadlock: {self.living()} wait, {self.ended}"


class Interrupting(RuleBasedStateMachine):
    """The main thread as the interruption's machine sees it: deaf, in a section, swallowing, storing, unwinding, out,
    or where nothing must land."""

    UNWIND, HOLD = 1.0, 3.0

    def __init__(self) -> None:
        super().__init__()
        self.machine = InterruptPolicy(self.UNWIND, self.HOLD)
        self.now = self.quiet_since = 0.0
        self.out = self.masked = self.alive = self.stored = False
        self.raised = self.deferred = 0
        self.landing = Landing.SAFE

    def seen(self) -> Seen:
        return Seen(out=self.out, masked=self.masked, raised=self.raised, alive=self.alive, stored=self.stored,
                    deferred=self.deferred, landing=self.landing)  # fmt: skip

    def ask(self) -> tuple[Any, ...]:
        seen, state = self.seen(), self.machine.state(now=self.now)
        known = seen._replace(raised=self.machine._raised, deferred=self.machine._deferred)
        twin = InterruptPolicy.from_state(self.UNWIND, state, seen=known, now=self.now, hold=self.HOLD)
        actions = self.machine.tick(seen, now=self.now)
        self.machine.check()
        assert len(twin.tick(seen, now=self.now + 1e-9)) >= len(actions), "not the same after a round trip"
        fires = [action for action in actions if isinstance(action, Fire)]
        assert not (actions and self.out), "I4: an interrupt outside the function"
        assert not (actions and self.masked), "I4: an interrupt in an atomic section"
        assert not (self.alive and [fire for fire in fires if fire.why is not Why.STUCK]), "it unwinds already"
        if fires or self.out or self.masked or self.alive:
            self.quiet_since = self.now
        patience = max(BLOCKED, MAX_REPEAT) + 1e-6
        assert self.now - self.quiet_since <= patience, f"no interrupt for {self.now - self.quiet_since} s"
        return actions

    @rule(does=st.sampled_from(("nothing", "swallows", "stores", "unwinds", *Landing)), early=st.floats(0.0, 1.0))
    def turn(self, does: str | Landing, early: float) -> None:
        """Ask when the machine wants to be asked, or before."""
        if self.machine.deadline < math.inf:
            assert self.machine.deadline > self.now or early, "asks again at once"
            self.now += max(0.0, self.machine.deadline - self.now) * (early if early < 0.5 else 1.0)
        for action in self.ask():
            if isinstance(action, Fire):
                self.hears(does, action.why)

    def hears(self, does: str | Landing, why: Why) -> None:
        if isinstance(does, Landing) and does is not Landing.SAFE and not why.insists:
            self.deferred, self.landing = self.deferred + 1, does
        elif does != "nothing":
            self.raised += 1
            self.alive, self.stored = does not in ("swallows", "stores"), does == "stores"

    @rule(landing=st.sampled_from((Landing.FRAGILE, Landing.ACQUIRES, Landing.CLEANUP)))
    def never_safe(self, landing: Landing) -> None:
        """Wherever it is reached, nothing must land there: in the end it does, but in an import."""
        begin, raised = self.now, self.raised
        self.quiet_since = self.now
        while not (self.out or self.masked or self.alive) and self.raised == raised:
            assert self.now <= begin + self.HOLD + 2 * MAX_REPEAT, f"put off for {self.now - begin} s"
            self.turn(landing, 1.0)

    @rule()
    def deaf(self) -> None:
        """Nothing lands, for long."""
        for _ in range(20):
            if self.machine.deadline < math.inf:
                assert self.machine.deadline > self.now, "asks again at once"
                self.now = self.machine.deadline
            self.ask()

    @rule(section=st.booleans())
    def moves(self, section: bool) -> None:
        self.masked = section and not self.alive
        self.alive = self.stored = False
        self.quiet_since = self.now

    @rule()
    def leaves(self) -> None:
        self.out = True


class Leases(RuleBasedStateMachine):
    """Two members that renew leases by their own clocks, which the observer does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.now = LeaseTable(timeout=10.0), 1000.0
        self.moved = dict[int, float]()
        self.beats = dict[int, int]()

    @rule(member=st.integers(0, 1), skew=st.sampled_from((0, 1, 3600, 10**6)))
    def beat(self, member: int, skew: int) -> None:
        self.beats[member] = self.beats.get(member, skew) + 1
        self.look(member)

    @rule(member=st.integers(0, 1))
    def look(self, member: int) -> None:
        if member in self.beats:
            lease = f"{self.beats[member]}/0"
            if self.seen.get(member) != lease:
                self.moved[member] = self.now
            self.seen[member] = lease
            self.table.observe(member, lease, now=self.now)

    @rule(seconds=st.floats(0.0, 12.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(kept=st.sets(st.integers(0, 1)))
    def keep(self, kept: set[int]) -> None:
        self.table.keep(kept)
        for member in {0, 1} - kept:
            self.moved.pop(member, None)
            self.seen.pop(member, None)

    @initialize()
    def begin(self) -> None:
        self.seen = dict[int, str]()

    @invariant()
    def judged_by_the_observer(self) -> None:
        stale = tuple(sorted(member for member, at in self.moved.items() if self.now - at >= 10.0))
        assert self.table.stale(now=self.now) == stale, "a lease is judged by another clock"
        assert self.table.deadline == min((at + 10.0 for at in self.moved.values()), default=math.inf)
        again = LeaseTable.from_state(10.0, self.table.state(now=self.now), now=self.now)
        assert again.state(now=self.now) == self.table.state(now=self.now)


class Watching(RuleBasedStateMachine):
    """A rank that shows signs of life, or none, and a monitor that looks when it wants to or later."""

    SOFT, HARD, GRACE = 10.0, 30.0, 2.0

    def __init__(self) -> None:
        super().__init__()
        self.watch = HangDetector(self.SOFT, self.HARD, self.GRACE)
        self.now = self.alive_at = self.looked = 0.0
        self.iteration, self.stage = 0, Stage.RUNNING
        self.noticed = self.interrupting = False
        self.since: float | None = None
        self.verdicts = list[Any]()
        self.reported = False

    def reading(self) -> ProgressSample:
        return ProgressSample(iteration=self.iteration, stage=self.stage, alive_at=self.alive_at, noticed=self.noticed,
                       interrupting=self.interrupting)  # fmt: skip

    @rule()
    def lives(self) -> None:
        self.alive_at = self.now

    @rule(stage=st.sampled_from((Stage.STARTING, Stage.RUNNING, Stage.WAITING, Stage.UNWINDING, Stage.ARRIVED)))
    def goes_on(self, stage: Stage) -> None:
        self.stage, self.alive_at = stage, self.now

    @rule()
    def restarts(self) -> None:
        self.iteration += 1
        self.stage, self.alive_at, self.since, self.reported = Stage.RUNNING, self.now, None, False
        self.noticed = self.interrupting = False

    @precondition(lambda self: self.stage is Stage.RUNNING)
    @rule()
    def interrupted(self) -> None:
        self.noticed = self.interrupting = True

    @rule(late=st.floats(0.0, 40.0), on_the_way=st.booleans())
    def look(self, late: float, on_the_way: bool) -> None:
        """Look at the deadline, or earlier: the shell looks once a second at the latest, or more often."""
        self.now += min(late, max(0.0, self.watch.deadline - self.now))
        for action in self.ask(on_the_way):
            self.judge(action)

    def ask(self, on_the_way: bool) -> tuple[Any, ...]:
        if self.since is None and self.interrupting and self.stage is Stage.RUNNING:
            self.since = self.now
        twin = HangDetector.from_state(self.SOFT, self.HARD, self.GRACE, self.watch.state(now=self.now), now=self.now)
        actions = self.watch.evaluate(self.reading(), now=self.now)
        self.watch.check()
        assert [type(each) for each in twin.evaluate(self.reading(), now=self.now)] == [type(each) for each in actions]
        if any(isinstance(action, QueryPeers) for action in actions):
            self.watch.peers_progressing(on_the_way, now=self.now)
            actions = self.watch.evaluate(self.reading(), now=self.now)
        return actions

    def judge(self, action: Any) -> None:
        silent = self.now - (self.alive_at if self.since is None else min(self.alive_at, self.since))
        if isinstance(action, SoftTimeout):
            assert silent >= self.SOFT - 1e-6, f"I12: reported after {silent} s"
            assert not self.reported, "I12: reported twice"
            self.reported = True
        elif isinstance(action, SendSignal):  # the handler runs, whoever else is dead
            self.since, self.alive_at = self.since if self.since is not None else self.now, self.now
        elif isinstance(action, Terminate):
            assert silent >= self.HARD - 1e-6, f"I12: ended after {silent} s"
        elif isinstance(action, Kill):
            assert any(isinstance(each, Terminate) for each in self.verdicts), "I12: killed without a warning"
        self.verdicts.append(action)

    @rule()
    def dies_of_silence(self) -> None:
        """Only signals' handlers run: within both timeouts and the grace, twice for an excuse, the rank is killed."""
        if self.stage in (Stage.WAITING, Stage.ARRIVED):
            return
        end = max(self.now, self.alive_at + self.HARD) + self.SOFT + self.HARD + self.GRACE + 2.0
        while self.now < end:
            for action in self.ask(on_the_way=False):
                self.judge(action)
            if any(isinstance(each, Kill) for each in self.verdicts):
                return
            assert self.watch.deadline < math.inf, "I12: a silent rank is looked at no more"
            self.now = max(self.now + 1e-3, self.watch.deadline)
        raise AssertionError(f"I12: not killed {self.now - self.alive_at} s after its last sign of life")


MACHINES = (Rounds, Interrupting, Leases, Watching)
