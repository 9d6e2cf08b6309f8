"""The states of a rank monitor, and their log lines."""

from __future__ import annotations

import logging

import pytest

from nvrx_core.fault_tolerance.data import InvalidStateTransitionException
from nvrx_core.fault_tolerance.states import RankMonitorState, RankMonitorStateMachine

S = RankMonitorState


def states_of(*events):
    machine = RankMonitorStateMachine()
    seen = []
    for event in events:
        getattr(machine, event)()
        seen.append(machine.state)
    return seen


def test_a_fault_is_handled_when_the_next_rank_is_watched():
    seen = states_of("attached", "connection_lost", "attached", "connection_lost", "attached", "finish")
    assert seen == [
        S.INITIALIZE,
        S.HANDLING_START,
        S.HANDLING_COMPLETED,
        S.HANDLING_START,
        S.HANDLING_COMPLETED,
        S.FINALIZED,
    ]


def test_a_rank_that_is_lost_while_a_fault_is_handled_aborts():
    assert states_of("attached", "connection_lost", "connection_lost", "attached", "finish")[2:] == [S.ABORTED] * 3


def test_an_end_while_a_fault_is_handled_aborts():
    assert states_of("attached", "connection_lost", "finish")[-1] is S.ABORTED


def test_a_monitor_without_a_rank_has_nothing_to_lose():
    assert states_of("connection_lost", "finish") == [S.UNINITIALIZED, S.FINALIZED]


def test_a_transition_that_does_not_exist_is_refused():
    with pytest.raises(InvalidStateTransitionException, match="UNINITIALIZED -> HANDLING_START; allowed is ABORTED, "):
        RankMonitorStateMachine().transition_to(S.HANDLING_START)


def test_transitions_are_logged_where_a_log_is_wanted(caplog):
    with caplog.at_level(logging.INFO, "nvrx_core"):
        for wanted in (False, True):
            machine = RankMonitorStateMachine(log=wanted)
            machine.attached()
            machine.connection_lost()
    assert caplog.messages == [
        "[NestedRestarter] name=[InJob] state=initialize",
        "[NestedRestarter] name=[InJob] state=handling stage=starting",
    ]
