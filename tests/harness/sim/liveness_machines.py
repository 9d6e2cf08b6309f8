"""Any order of renewals, progress and looks at a lease or a rank, as Hypothesis state machines."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nvrx_core.liveness.hang_detector import (
    CallRules,
    Excuse,
    HangDetector,
    KillRank,
    QueryPeers,
    SendSignal,
    SoftTimeout,
    TerminateRank,
)
from nvrx_core.liveness.lease import LeaseTable
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.progress.stage import Stage

__all__ = ["Leases", "Watching"]


class Leases(RuleBasedStateMachine):
    """Two members that renew leases by their own clocks, which the observer does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.now = LeaseTable[int](timeout=10.0), 1000.0
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
    """A rank that makes progress, or none, and a monitor that looks when it wants to or later."""

    SOFT, HARD, GRACE = 10.0, 30.0, 2.0
    call_rules = CallRules(SOFT, HARD, GRACE)

    def __init__(self) -> None:
        super().__init__()
        self.watch = HangDetector(self.call_rules)
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
        twin = HangDetector.from_state(self.call_rules, self.watch.state(now=self.now), now=self.now)
        actions = self.watch.evaluate(self.reading(), now=self.now)
        self.watch.check()
        assert [type(each) for each in twin.evaluate(self.reading(), now=self.now)] == [type(each) for each in actions]
        if any(isinstance(action, QueryPeers) for action in actions):
            self.watch.answered(Excuse.PEER_BEHIND if on_the_way else None, now=self.now)
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
        elif isinstance(action, TerminateRank):
            assert silent >= self.HARD - 1e-6, f"I12: ended after {silent} s"
        elif isinstance(action, KillRank):
            assert any(isinstance(each, TerminateRank) for each in self.verdicts), "I12: killed without a warning"
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
            if any(isinstance(each, KillRank) for each in self.verdicts):
                return
            assert self.watch.deadline < math.inf, "I12: a silent rank is looked at no more"
            self.now = max(self.now + 1e-3, self.watch.deadline)
        raise AssertionError(f"I12: not killed {self.now - self.alive_at} s after its last sign of life")
