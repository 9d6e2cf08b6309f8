"""The flows that interrupt: what they observe, fire and wait for, with a main thread and a clock that are made up."""

from __future__ import annotations

import math

from nvrx_core.inprocess.interruption.landing import Landing
from nvrx_core.inprocess.interruption.policy import FireReason, InterruptPolicy, ThreadSample, begin, drive
from tests.harness.asked import Asking, ask, drive as run


class Function:
    """A function in the main thread: which signals reach it, and when it leaves.

    Args:
        leaves_at: the signal that ends it, by number.
        deferred: how many signals reach it where nothing must land.
        swallowed: how many it swallows.
    """

    def __init__(self, leaves_at: float = math.inf, deferred: int = 0, swallowed: int = 0) -> None:
        self.leaves_at, self.defers, self.swallows = leaves_at, deferred, swallowed
        self.now, self.fired, self.raised, self.deferred = 0.0, 0, 0, 0
        self.left = self.masked = False
        self.armed, self.blocks_after = True, math.inf
        self.told = list[object]()

    def run(self, flow, *machine):
        run(flow(*machine, Asking(), lambda: self.now), self.carry_out)

    def carry_out(self, asked):
        self.told.append(asked)
        if asked.name == "observe":
            return ThreadSample(out=not self.armed, masked=self.masked, raised=self.raised, alive=False,
                        deferred=self.deferred, landing=Landing.FRAGILE)  # fmt: skip
        if asked.name == "fire":
            self.fire()
        elif asked.name == "await_left":
            (deadline,) = asked.args
            if not self.left:
                assert self.armed or deadline <= self.now or deadline == math.inf
                self.left = deadline == math.inf or self.left
                self.now = self.now if deadline == math.inf else max(self.now, deadline)
            return self.left
        elif asked.name == "await_unmasked":
            self.masked, self.left = False, True  # the end of the section raises
            return self.left
        return None

    def fire(self):
        assert self.armed
        assert not self.masked
        self.fired += 1
        if self.fired > self.blocks_after:
            return
        if self.fired <= self.defers:
            self.deferred += 1
        elif self.fired <= self.defers + self.swallows:
            self.raised += 1
        elif self.fired >= self.leaves_at:
            self.left = True

    def kinds(self):
        return [asked.name for asked in self.told]


def policy():
    return InterruptPolicy(unwind=10.0)


def test_a_function_that_reacts_is_interrupted_once():
    function = Function(leaves_at=1)
    function.run(begin, policy())
    assert (function.fired, function.left) == (1, True)


def test_a_function_that_does_not_react_is_not_waited_for_before_the_abort():
    function, machine = Function(leaves_at=3), policy()
    function.run(begin, machine)
    assert function.fired == 1
    assert function.now < 0.001
    function.run(drive, machine)
    assert (function.fired, function.left) == (3, True)


def test_a_function_that_blocks_after_a_deferral_is_not_waited_for_before_the_abort():
    function = Function(deferred=3)
    function.blocks_after = 3
    function.run(begin, policy())
    assert function.fired == 4
    assert function.now < 0.003


def test_while_the_interruption_is_deferred_the_abort_waits_within_a_bound():
    function = Function(leaves_at=20, deferred=5)
    function.run(begin, policy())
    assert function.fired >= 5
    function = Function(deferred=100_000)
    function.run(begin, policy())
    assert 0.05 < function.now < 0.06


def test_in_an_atomic_section_nothing_is_fired():
    function, machine = Function(), policy()
    function.masked = True
    function.run(begin, machine)
    function.run(drive, machine)
    assert function.fired == 0
    assert "await_unmasked" in function.kinds()


def test_a_thread_outside_of_the_function_is_left_alone():
    function, machine = Function(), policy()
    function.armed = False
    function.run(begin, machine)
    function.run(drive, machine)
    assert function.fired == 0
    assert function.told[-1] == ask("await_left", math.inf)


def test_what_is_blocked_is_closed_and_what_swallows_or_defers_for_long_is_reported_once():
    function = Function(leaves_at=60, deferred=1, swallowed=2)
    function.run(drive, policy())
    assert "close_blocked" in function.kinds()
    swallowed = [asked.args[0] for asked in function.told if asked.name == "report_swallowed"]
    assert swallowed == [1, 2]
    function = Function(leaves_at=10_000, deferred=9_999)
    function.run(drive, policy())
    assert function.kinds().count("report_deferred") == 1
    whys = {asked.args[0] for asked in function.told if asked.name == "fire"}
    assert whys >= {FireReason.FIRST, FireReason.OVERDUE}


def test_who_stores_the_interruption_is_reported_before_it_is_raised_again():
    machine = policy()
    machine.tick(ThreadSample(out=False, masked=False, raised=0, alive=False), now=0.0)
    stored = ThreadSample(out=False, masked=False, raised=1, alive=False, stored=True)
    machine.tick(stored, now=0.001)
    flow = drive(machine, Asking(), lambda: 60.0)
    assert flow.send(None) == ask("await_left", 60.0)
    assert flow.send(False) == ask("observe")
    assert flow.send(stored) == ask("report_stored")
    assert flow.send(None) == ask("fire", FireReason.STORED)
    flow.close()
