"""How fast restarts may follow each other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from nvrx_launcher.node_actions import SendMessage
from nvrx_launcher.node_policy import NodePolicy
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.coordinator_state import CoordinatorState
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.restart_budget import PacingRules, RestartPacing


def pauses(cycles, **rules):
    """The pauses after cycles; True for one that came to nothing."""
    pacing, found = RestartPacing(PacingRules(**rules)), []
    for no_progress in cycles:
        found.append(pacing.pause(no_progress=no_progress))
        pacing.restarted(no_progress=no_progress, now=0.0)
    return found


@pytest.mark.parametrize(
    ("cycles", "rules", "expected"),
    [
        ([False] * 3, {}, [0.0] * 3),
        ([True] * 9, {}, [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]),
        ([True, True, False, True, True], {}, [0.0, 1.0, 0.0, 0.0, 1.0]),
        ([False, True, True, True], {"backoff": 1.5}, [1.5, 1.5, 1.5, 2.0]),
        ([True] * 4, {"backoff": None}, [0.0] * 4),
    ],
)
def test_cycles_that_come_to_nothing_are_followed_by_longer_and_longer_pauses(cycles, rules, expected):
    assert pauses(cycles, **rules) == expected


def test_restarts_are_counted_in_a_window():
    pacing = RestartPacing(PacingRules(window=60.0, max_in_window=2))
    for now in (0.0, 10.0):
        assert pacing.exceeded(now=now) == ""
        pacing.restarted(no_progress=False, now=now)
    assert pacing.exceeded(now=59.0) == "after 2 restarts within 60 s"
    assert pacing.exceeded(now=60.0) == ""
    assert pacing.ages(now=61.0) == (51.0,)
    successor = RestartPacing(PacingRules(window=60.0, max_in_window=1), ages=(51.0,), no_progress_cycles=1, now=5.0)
    assert successor.exceeded(now=13.0)
    assert not successor.exceeded(now=14.0)
    assert successor.pause(no_progress=True) == 1.0


def ready(cycle):
    return Message(0, MessageKind.READY, cycle, "", NodeDescription("host", "a", 1, 2))


def running(**pacing):
    made = Coordinator(Rules(1, 1, 10, pacing=PacingRules(**pacing)))
    made.start(now=0.0)
    made.received(ready(-1), now=0.0)
    return made


def fail(made, now, kind=MessageKind.NO_PROGRESS):
    """A cycle fails, and its workers are gone at once; returns what is decided."""
    cycle = made.cycle
    decided = [*made.received(Message(0, kind, cycle, "rank 0 has failed"), now=now)]
    decided += made.received(ready(cycle), now=now)
    made.check()
    return decided


def test_a_cycle_begins_when_the_pause_is_over_and_says_so():
    made = running()
    assert [each.kind for each in fail(made, 1.0)] == [DecisionKind.STOP, DecisionKind.RUN]
    (stop,) = fail(made, 2.0)
    assert stop.reason == "host: rank 0 has failed; the next cycle is 1 s away"
    assert made.deadline == 3.0
    assert made.tick(now=2.9) == ()
    assert [each.kind for each in made.tick(now=3.0)] == [DecisionKind.RUN]
    assert made.deadline == math.inf
    assert [each.kind for each in fail(made, 4.0, MessageKind.FAILED)] == [DecisionKind.STOP, DecisionKind.RUN]


def test_a_job_ends_when_the_restarts_of_a_window_are_spent():
    made = running(max_in_window=1, window=100.0)
    assert [each.kind for each in fail(made, 1.0, MessageKind.FAILED)] == [DecisionKind.STOP, DecisionKind.RUN]
    _, end = fail(made, 50.0, MessageKind.FAILED)
    assert end == Decision(DecisionKind.END, 1, "host: rank 0 has failed, after 1 restarts within 100 s", 1)


@pytest.mark.parametrize(
    "rules",
    [
        Rules(1, 1, 1, pacing=PacingRules(backoff=16.0)),
        Rules(1, 1, 9, pacing=PacingRules(backoff=16.0, max_in_window=1)),
    ],
)
def test_no_next_cycle_is_announced_when_the_job_ends(rules):
    made = Coordinator(rules)
    made.start(now=0.0)
    made.received(ready(-1), now=0.0)
    (stop,) = fail(made, 1.0)
    assert stop.reason == "host: rank 0 has failed; the next cycle is 16 s away"
    made.tick(now=17.0)
    stop, end = fail(made, 18.0)
    assert (stop.reason, end.kind) == ("host: rank 0 has failed", DecisionKind.END)


def test_a_successor_waits_for_the_rest_of_a_pause_and_counts_on():
    made = running(max_in_window=3)
    fail(made, 1.0)
    fail(made, 2.0)
    state = CoordinatorState.from_json(made.state(now=2.25).to_json())
    successor = Coordinator.from_state(made.rules, state, now=100.0)
    assert successor.state(now=100.0) == made.state(now=2.25)
    assert successor.deadline == 100.75
    (run,) = successor.tick(now=100.75)
    assert run.kind is DecisionKind.RUN
    assert [each.kind for each in fail(successor, 101.0)] == [DecisionKind.STOP]
    assert successor.deadline == 103.0


def test_no_node_is_missed_while_a_pause_lasts():
    """A message within the pause finds the time to join over, and enough nodes ready."""
    made = running()
    fail(made, 1.0)
    fail(made, 2.0)
    assert made.deadline == 3.0
    made = Coordinator.from_state(replace(made.rules, join_timeout=0.5), made.state(now=2.0), now=2.0)
    assert made.received(ready(1), now=2.9) == ()
    assert [each.kind for each in made.tick(now=3.0)] == [DecisionKind.RUN]


def test_a_node_says_that_its_workers_have_taken_no_step():
    for no_progress, kind in ((True, MessageKind.NO_PROGRESS), (False, MessageKind.FAILED)):
        policy = NodePolicy(1, workers_stop_timeout=1.0, term_timeout=1.0)
        policy.joined(0)
        policy.decided(Decision(DecisionKind.RUN, 0, "", members=(Member(0, 0, 1),)))
        assert policy.worker_exited(0, 1, "x", no_progress=no_progress)[0] == SendMessage(kind, 0, "x")
