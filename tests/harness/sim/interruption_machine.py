"""Any behaviour of a main thread that is interrupted, as a Hypothesis state machine."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from nvrx_core.inprocess.interruption.landing import Landing
from nvrx_core.inprocess.interruption.policy import BLOCKED, MAX_REPEAT, Fire, FireReason, InterruptPolicy, ThreadSample

__all__ = ["Interrupting"]


class Interrupting(RuleBasedStateMachine):
    """The main thread as the interruption's machine sees it: deaf, in a section, swallowing, storing, unwinding, out,
    or where nothing must land; there it may await a line."""

    UNWIND, HOLD = 1.0, 3.0

    def __init__(self) -> None:
        super().__init__()
        self.machine = InterruptPolicy(self.UNWIND, self.HOLD)
        self.now = self.quiet_since = 0.0
        self.out = self.masked = self.alive = self.stored = self.traced = self.awaited = False
        self.raised = self.deferred = self.waited = 0
        self.share, self.waits, self.ran = 1.0, False, 0.0
        self.landing = Landing.SAFE

    def seen(self) -> ThreadSample:
        return ThreadSample(
            out=self.out, masked=self.masked, raised=self.raised, alive=self.alive, stored=self.stored,
            deferred=self.deferred, awaited=self.awaited, landing=self.landing, waited=self.waited, ran=self.ran,
        )  # fmt: skip

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
        assert not (self.alive and [fire for fire in fires if fire.why is not FireReason.STUCK]), "it unwinds already"
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
            self.passes(max(0.0, self.machine.deadline - self.now) * (early if early < 0.5 else 1.0))
        for action in self.ask():
            if isinstance(action, Fire):
                self.hears(does, action.why)

    def hears(self, does: str | Landing, why: FireReason) -> None:
        if isinstance(does, Landing) and does is not Landing.SAFE and not why.insists:
            self.deferred, self.landing, self.awaited = self.deferred + 1, does, self.traced
            self.waited += not self.share and self.waits
        elif does != "nothing":
            self.awaited = False
            self.raised += 1
            self.alive, self.stored = does not in ("swallows", "stores"), does == "stores"

    @rule(traced=st.booleans())
    def traces(self, traced: bool) -> None:
        """Where nothing must land, the thread awaits the next line that it may land on, or is traced by a debugger."""
        self.traced, self.awaited = traced, traced and self.awaited

    @rule(does=st.sampled_from(("swallows", "stores", "unwinds")), early=st.floats(0.0, 1.0))
    def reaches_line(self, does: str, early: float) -> None:
        """It reaches that line, at any time, and is interrupted there."""
        if self.awaited and not (self.out or self.masked):
            self.passes(max(0.0, self.machine.deadline - self.now) * early)
            self.hears(does, FireReason.UNSEEN)
            self.ask()

    def passes(self, seconds: float) -> None:
        self.now, self.ran = self.now + seconds, self.ran + self.share * seconds

    @rule(share=st.sampled_from((0.0, 0.01, 0.3, 1.0)), waits=st.booleans())
    def runs(self, share: float, waits: bool) -> None:
        """The thread gets this share of a core; without any, it waits in a system call, or for a core."""
        self.share, self.waits = share, waits

    @rule(landing=st.sampled_from((Landing.FRAGILE, Landing.ACQUIRES)))
    def starves(self, landing: Landing) -> None:
        """Nothing but the bound of all deferrals counts while the thread cannot move on."""
        self.moves(section=False)
        self.machine, self.landing = InterruptPolicy(self.UNWIND, self.HOLD), Landing.SAFE
        self.raised = self.deferred = self.waited = 0
        self.awaited = False
        self.runs(0.0, waits=False)
        begin = self.now
        while not self.out and self.now < begin + 0.9 * self.HOLD:
            self.turn(landing, 1.0)
            assert not self.raised, f"it has not run since, and is interrupted after {self.now - begin} s"

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
                self.passes(self.machine.deadline - self.now)
            self.ask()

    @rule(section=st.booleans())
    def moves(self, section: bool) -> None:
        self.masked = section and not self.alive
        self.awaited = False
        self.alive = self.stored = False
        self.quiet_since = self.now

    @rule()
    def leaves(self) -> None:
        self.out, self.awaited = True, False
