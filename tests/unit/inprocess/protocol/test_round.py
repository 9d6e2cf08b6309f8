"""One round of one member, and the death_report of a dead one: what each event asks the shell to do."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.death_report import DeathReport
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, RoundDecision
from nvrx_core.inprocess.protocol.round import (
    Announce,
    AskHolders,
    CloseCompleted,
    CountArrival,
    CountCompletion,
    EndFunction,
    Enter,
    Finish,
    GiveUp,
    LateCompletion,
    Publish,
    PutArrival,
    ReadArrivals,
    ReadEvent,
    Round,
    RoundPhase,
    RoundTimeouts,
)

MEMBERS = frozenset(range(3))
TIMEOUTS = RoundTimeouts(barrier=60.0, completion=30.0)
FAULT = FaultRecord(initial_rank=2, rank=1, interruption="EXCEPTION", message="broken")


def new(iteration=4, member=1):
    return Round(iteration, member, MEMBERS, TIMEOUTS)


def arrival(member=1, status=ArrivalStatus.ALIVE, fault=None):
    return Arrival(initial_rank=member, rank=member, status=status, world_size=3, fault=fault)


def decision(*lost):
    return RoundDecision(iteration=4, lost=lost, terminated=lost, cause=FAULT, culprits=(2,), step=-1)


def interrupted():
    machine = new()
    machine.event_written()
    return machine


def completed():
    machine = new()
    machine.completed()
    return machine


def arrived():
    machine = interrupted()
    machine.arrive(arrival(), now=2.0)
    return machine


# A round that restarts


def test_a_fault_is_announced():
    assert new().fault(FAULT) == (Announce(FAULT),)


def test_a_fault_after_the_function_returned_is_announced_too():
    machine = new()
    machine.completed()
    assert machine.fault(FAULT) == (Announce(FAULT),)


def test_a_fault_in_a_round_that_has_ended_is_not_announced():
    assert interrupted().fault(FAULT) == ()


def test_the_event_aborts_a_member_that_has_not_completed_without_being_read():
    assert new().event_written() == (EndFunction("iteration 4 ends: a fault was announced"),)


def test_a_fault_aborts_a_member_that_has_completed_and_says_why():
    machine = completed()
    assert machine.event_written() == (ReadEvent(),)
    (abort,) = machine.event_read(FAULT)
    assert isinstance(abort, EndFunction)
    assert abort.reason.startswith("iteration 4 ends: EXCEPTION on rank 1 (initial rank 2")


def test_only_the_first_event_counts():
    machine = interrupted()
    for actions in (
        machine.event_written(),
        machine.event_read(None),
        machine.event_read(FAULT),
    ):
        assert actions == ()
    assert machine.phase is RoundPhase.INTERRUPTED


def test_an_arrival_is_written_before_it_is_counted():
    machine = interrupted()
    assert machine.arrive(arrival(), now=2.0) == (PutArrival(arrival()), CountArrival())
    assert machine.deadline == 62.0


def test_a_member_arrives_once():
    machine = arrived()
    assert machine.arrive(arrival(), now=3.0) == ()
    assert machine.deadline == 62.0


def test_whoever_counts_as_many_as_there_are_members_reads_the_arrivals():
    machine = arrived()
    assert machine.arrival_counted(2) == ()
    assert machine.arrival_counted(3) == machine.arrival_counted(7) == (ReadArrivals(MEMBERS),)


def test_arrivals_are_decided_on_when_none_is_missing():
    machine = arrived()
    arrivals = {0: arrival(0), 1: arrival(1), 2: arrival(2, ArrivalStatus.DEAD)}
    assert machine.arrivals_read({0: arrival(0), 1: arrival(1)}, FAULT) == ()
    (publish,) = machine.arrivals_read({**arrivals, 9: arrival(9, ArrivalStatus.DEAD)}, FAULT)
    assert isinstance(publish, Publish)
    assert (publish.decision.iteration, publish.decision.lost, publish.decision.cause) == (4, (2,), FAULT)


def test_the_decision_leads_into_the_next_round_with_those_not_lost():
    machine = arrived()
    assert machine.decided(decision(2)) == (Enter(frozenset({0, 1}), decision(2)),)
    assert machine.deadline == math.inf


def test_a_lost_member_enters_no_further_round():
    machine = arrived()
    assert machine.decided(decision(1)) == ()
    assert machine.deadline == math.inf


def test_the_decision_of_another_round_changes_nothing():
    assert arrived().decided(replace(decision(2), iteration=3)) == ()


def test_a_decision_that_was_taken_without_this_member_leads_nowhere():
    assert interrupted().decided(decision(1)) == ()


def test_the_barrier_before_the_first_iteration_has_no_event():
    machine = new(iteration=-1)
    assert machine.arrive(arrival(), now=1.0) == (PutArrival(arrival()), CountArrival())
    first = replace(decision(), iteration=-1)
    assert machine.decided(first) == (Enter(MEMBERS, first),)


# A round that completes


def test_a_completion_is_counted_once():
    machine = new()
    assert machine.completed() == (CountCompletion(),)
    assert machine.completed() == ()


def test_who_counts_the_last_completion_closes_the_round():
    machine = new()
    machine.completed()
    assert machine.completion_counted(2) == ()
    assert machine.completion_counted(3) == (CloseCompleted(),)


def test_the_round_is_finished_when_all_completed():
    machine = new()
    machine.completed()
    assert machine.event_read(None) == (Finish("all 3 ranks have completed iteration 4"),)
    assert machine.arrive(arrival(), now=3.0) == ()
    assert machine.phase is RoundPhase.FINISHED


def test_the_others_have_a_bound_for_their_completion():
    machine = completed()
    assert machine.deadline == math.inf
    assert machine.waits_for_completion(now=2.0) == ()
    assert machine.deadline == 32.0
    assert machine.tick(now=31.9) == ()
    assert machine.tick(now=32.0) == (AskHolders(MEMBERS),)
    late = LateCompletion("iteration 4: not all of 3 ranks were complete after 30 s")
    assert machine.held_up({}, now=32.0) == (late,)
    assert machine.tick(now=99.0) == ()
    assert machine.fault(FAULT) == (Announce(FAULT),)


def test_a_barrier_that_does_not_close_is_given_up():
    machine = arrived()
    assert machine.tick(now=61.9) == ()
    reason = "iteration 4: not all of 3 ranks were in the barrier after 60 s"
    leaving = PutArrival(arrival(status=ArrivalStatus.LEAVING))
    assert machine.tick(now=62.0) == (AskHolders(MEMBERS),)
    assert machine.held_up({}, now=62.0) == (leaving, CountArrival(), GiveUp(reason))
    assert machine.tick(now=99.0) == ()
    assert machine.decided(decision(2)) != ()
    assert machine.held_up({}, now=99.0) == ()


@pytest.mark.parametrize(("waits", "bound"), [(arrived, 60.0), (completed, 30.0)])
def test_a_rank_in_an_atomic_section_is_waited_for_while_its_lease_moves(waits, bound):
    machine = waits()
    if machine.phase is RoundPhase.COMPLETE:
        machine.waits_for_completion(now=2.0)
    now = machine.deadline
    for beats in (7, 9):
        assert machine.tick(now=now) == (AskHolders(MEMBERS),)
        assert machine.tick(now=now) == ()
        assert machine.held_up({2: beats, 0: 1}, now=now) == ()
        assert machine.deadline == now + bound
        now = machine.deadline
    machine.tick(now=now)
    assert isinstance(machine.held_up({2: 9, 0: 1}, now=now)[-1], GiveUp | LateCompletion)


# Leaving early


@pytest.mark.parametrize("machine", [new(), interrupted()], ids=["before", "after the event"])
def test_who_leaves_before_the_round_began_is_waited_for_nowhere(machine):
    left = arrival(status=ArrivalStatus.LEAVING)
    assert machine.leave(left) == (PutArrival(left), CountArrival(), CountCompletion())
    assert machine.event_written() == ()


def test_who_has_arrived_does_not_leave_early():
    assert arrived().leave(arrival(status=ArrivalStatus.LEAVING)) == ()


# The machine's state


def test_a_machine_rebuilt_from_its_state_answers_the_same():
    for machine in (new(), interrupted(), arrived()):
        rebuilt = Round.from_state(machine.state(), TIMEOUTS)
        assert rebuilt.state() == machine.state()
        assert rebuilt.decided(decision(2)) == machine.decided(decision(2))


def test_a_broken_invariant_is_noticed():
    machine = new()
    machine.deadline = 1.0
    with pytest.raises(AssertionError):
        machine.check()
    with pytest.raises(AssertionError):
        new(iteration=-2).check()


def test_what_changes_what_runs_says_why():
    (enter,) = arrived().decided(decision(2))
    assert enter.reason.startswith("2 ranks go on to iteration 5: EXCEPTION on rank 1 (initial rank 2")
    assert enter.reason.endswith("; lost: initial ranks [2]")
    assert replace(decision(), cause=None).reason == "no fault is known"


def decided():
    machine = arrived()
    machine.decided(decision(2))
    return machine


def finished():
    machine = completed()
    machine.event_read(None)
    return machine


WAYS = {
    RoundPhase.OPEN: new, RoundPhase.COMPLETE: completed, RoundPhase.INTERRUPTED: interrupted,
    RoundPhase.ARRIVED: arrived, RoundPhase.DECIDED: decided, RoundPhase.FINISHED: finished,
}  # fmt: skip
"""How a machine comes to each phase."""
ACTS = {
    "fault": (lambda m: m.fault(FAULT), {RoundPhase.OPEN, RoundPhase.COMPLETE}),
    "completed": (lambda m: m.completed(), {RoundPhase.OPEN}),
    "waits_for_completion": (lambda m: m.waits_for_completion(now=9.0), {RoundPhase.COMPLETE}),
    "event_written": (lambda m: m.event_written(), {RoundPhase.OPEN, RoundPhase.COMPLETE}),
    "event_read": (lambda m: m.event_read(FAULT), {RoundPhase.COMPLETE}),
    "arrive": (lambda m: m.arrive(arrival(), now=9.0), {RoundPhase.OPEN, RoundPhase.INTERRUPTED}),
    "leave": (
        lambda m: m.leave(arrival(status=ArrivalStatus.LEAVING)),
        {RoundPhase.OPEN, RoundPhase.INTERRUPTED},
    ),
    "decided": (lambda m: m.decided(decision(2)), {RoundPhase.ARRIVED}),
    "held_up": (lambda m: m.held_up({}, now=9.0), {RoundPhase.COMPLETE, RoundPhase.ARRIVED}),
}
"""Each input, and the phases in which it has an effect."""
INPUTS = st.sampled_from((
    lambda m, t: m.fault(FAULT), lambda m, t: m.completed(), lambda m, t: m.waits_for_completion(now=t),
    lambda m, t: m.completion_counted(3), lambda m, t: m.event_written(),
    lambda m, t: m.event_read(FAULT), lambda m, t: m.event_read(None),
    lambda m, t: m.arrive(arrival(), now=t), lambda m, t: m.arrival_counted(3), lambda m, t: m.tick(now=t),
    lambda m, t: m.decided(decision(2)), lambda m, t: m.leave(arrival()),
))  # fmt: skip


@pytest.mark.parametrize("name", ACTS)
def test_an_input_in_another_phase_has_no_effect(name):
    tell, acts = ACTS[name]
    for phase, way in WAYS.items():
        machine = way()
        assert machine.phase is phase
        before = machine.state(), machine.deadline
        actions = tell(machine)
        assert (bool(actions) or (machine.state(), machine.deadline) != before) == (phase in acts)


@given(st.lists(INPUTS, max_size=12))
def test_no_order_of_events_breaks_the_machine(inputs):
    machine, actions = new(), []
    for now, told in enumerate(inputs):
        actions += told(machine, now) or ()
        machine.check()
    kinds = [type(action) for action in actions]
    assert kinds.count(PutArrival) <= 1 + kinds.count(GiveUp) <= 2
    assert kinds.count(Finish) + kinds.count(EndFunction) <= 1
    assert kinds.count(Enter) <= kinds.count(PutArrival)


# The death_report of a dead member


def death_report(fault=FAULT):
    return DeathReport(4, 2, MEMBERS, fault)


def test_a_death_is_told_and_the_dead_arrives():
    assert death_report().died() == (Announce(FAULT),)
    put, count = death_report().announced(FAULT)
    assert put.arrival == Arrival(initial_rank=2, rank=1, status=ArrivalStatus.DEAD, fault=FAULT)
    assert count == CountArrival()


def test_nobody_waits_for_who_died_after_the_completion():
    assert death_report().announced(None) == (Finish("iteration 4 was completed before initial rank 2 died"),)


def test_the_monitor_process_may_be_the_one_that_closes_the_barrier():
    machine = death_report()
    assert machine.arrival_counted(3) == (ReadArrivals(MEMBERS),)
    arrivals = {0: arrival(0), 1: arrival(1), 2: arrival(2, ArrivalStatus.DEAD, FAULT)}
    (publish,) = machine.arrivals_read(arrivals, FAULT)
    assert publish.decision.lost == (2,)


def test_a_death_that_the_decision_knows_is_over():
    assert death_report().decided(decision(2)) == ()


def test_a_death_that_the_decision_does_not_know_is_told_to_the_next_round():
    machine = death_report()
    (enter,) = machine.decided(decision(0))
    assert enter == Enter(frozenset({1, 2}), decision(0))
    following = machine.next(enter.members)
    assert (following.iteration, following.members, following.fault.rank) == (5, frozenset({1, 2}), -1)


def test_a_dead_member_completes_nothing_and_reads_no_event():
    report = DeathReport(4, 2, MEMBERS, FAULT)
    assert report.completion_counted(1) == report.event_read(None) == ()
