"""A restart is reported once: when the function is entered again, or when the next iteration has failed before that."""

import logging
import re
from dataclasses import replace

import pytest

from nvrx_core.events.schema import EVENTS
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.call.own_faults import FaultMaker
from nvrx_core.inprocess.call.restart_trace import RestartTrace
from nvrx_core.inprocess.protocol.decision import RoundDecision
from nvrx_core.inprocess.protocol.round import Round, RoundTimeouts, RoundView
from nvrx_core.inprocess.state import State


class Events:
    def __init__(self):
        self.written = []

        self.fd = 7

    def fileno(self):
        return self.fd

    def write(self, event, iteration, **fields):
        self.written.append((event, iteration, fields))


class Housekeeping:
    def __init__(self):
        self.told = []

    def entered(self, state):
        self.told.append(("entered", state.iteration))

    def decided(self, rank, decision):
        self.told.append(("decided", decision.iteration))


def ended_round(iteration=0):
    view = RoundView(Round(iteration, 0, frozenset({0}), RoundTimeouts(60.0, 60.0)))
    fault = FaultRecord(initial_rank=0, rank=0, interruption="EXCEPTION", message="injected")
    view.decision = RoundDecision(iteration=iteration, lost=(), terminated=(), cause=fault, culprits=(0,), step=-1)
    return view


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def housekeeping():
    return Housekeeping()


@pytest.fixture
def deferred():
    return []


@pytest.fixture
def state():
    return State(rank=0, world_size=1)


@pytest.fixture
def trace(state, events, housekeeping, deferred):
    return RestartTrace(
        state, events, FaultMaker(0), housekeeping=housekeeping, defer=deferred.append, defer_idle=deferred.append
    )


def run(deferred):
    while deferred:
        deferred.pop(0)()


def test_the_first_entry_is_no_restart(trace, events, housekeeping, deferred):
    trace.mark("assigned")
    trace.entered()
    run(deferred)
    assert (events.written, housekeeping.told) == ([], [("entered", 0)])


def test_each_entry_is_a_line_for_those_who_debug(trace, state, deferred, caplog):
    with caplog.at_level(logging.DEBUG):
        trace.entered()
        assert caplog.messages == [], "no iteration waits for a file"
        run(deferred)
    assert caplog.messages == ["iteration 0 begins: rank 0 of 1, initialized"]


def test_a_restart_is_reported_when_the_function_is_entered(trace, state, events, housekeeping, deferred, caplog):
    trace.mark("interrupted")
    trace.round_ended(ended_round(), {"noticed": 1.0, "aborted": 2.0})
    state.iteration = 1
    trace.mark("initialized")
    trace.entered()
    assert events.written == [], "no restart waits for a file"
    with caplog.at_level(logging.INFO):
        run(deferred)
    [(event, iteration, fields), _] = events.written
    assert (event, iteration, fields["ended_iteration"]) == ("restart", 1, 0)
    assert fields["marks"].keys() == {
        "interrupted", "noticed", "aborted", "initialized", "entered", "occurred", "announced",
    }  # fmt: skip
    assert housekeeping.told == [("decided", 0), ("entered", 1)]
    (line,) = caplog.messages
    assert re.fullmatch(r"restart 1 in [\d.]+ ms \(this rank\): EXCEPTION on .*; none lost, .* ranks active", line)


def test_the_new_rank_0_says_what_the_cause_is_called_after_all_else(trace, state, events, deferred, caplog):
    for state.rank, state.iteration in ((0, 1), (1, 2)):
        trace.round_ended(ended_round(state.iteration - 1), {})
        trace.entered()
        run(deferred)
    verdict = {"class": "user_exception", "error_type": None, "action": "restart", "confidence": 0.85}
    assert [(event, iteration) for event, iteration, _ in events.written] == [
        ("restart", 1), ("restart_verdict", 1), ("restart", 2),
    ]  # fmt: skip
    assert events.written[1][2] == {"ended_iteration": 0, **verdict}
    assert events.written[1][2].keys() == set(EVENTS["restart_verdict"])


def test_no_rule_is_read_where_no_event_is_written_or_no_fault_is_known(trace, events, deferred):
    view = ended_round()
    view.decision = replace(view.decision, cause=None)
    trace.round_ended(view, {})
    trace.entered()
    run(deferred)
    events.fd = None
    trace.round_ended(ended_round(), {})
    trace.entered()
    run(deferred)
    assert [event for event, _, _ in events.written] == ["restart", "restart"]


def test_a_restart_whose_iteration_fails_before_it_is_entered_is_reported_all_the_same(trace, events, deferred):
    trace.round_ended(ended_round(0), {"noticed": 1.0})
    trace.round_ended(ended_round(1), {"noticed": 3.0})
    run(deferred)
    [(_, _, fields), _] = events.written
    assert (fields["ended_iteration"], fields["marks"]["noticed"]) == (0, 1.0)
    assert {"initialized", "entered"} <= fields["marks"].keys()


def test_a_restart_is_reported_once(trace, events, deferred):
    trace.round_ended(ended_round(), {})
    trace.report()
    trace.entered()
    run(deferred)
    assert [event for event, _, _ in events.written] == ["restart", "restart_verdict"]


def test_the_line_says_who_is_lost(trace, state, deferred, caplog):
    view = ended_round()
    view.decision = replace(view.decision, lost=(2,))
    state.world_size = state.active_world_size = 3
    trace.round_ended(view, {})
    trace.entered()
    with caplog.at_level(logging.INFO):
        run(deferred)
    assert caplog.messages[0].endswith("; 1 lost: [2], 3 left")


def test_equal_restarts_are_all_events_but_not_all_lines(trace, events, deferred, caplog):
    with caplog.at_level(logging.INFO):
        for iteration in range(20):
            trace.round_ended(ended_round(iteration), {})
            trace.entered()
            run(deferred)
    assert len([event for event, _, _ in events.written if event == "restart"]) == 20
    assert len(caplog.messages) == 2
