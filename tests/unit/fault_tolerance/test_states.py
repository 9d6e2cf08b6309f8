"""The states of a rank monitor, and their log lines."""

from __future__ import annotations

import logging

import pytest

from nvrx_core.fault_tolerance.data import InvalidStateTransitionException
from nvrx_core.fault_tolerance.states import RankMonitorState, RankMonitorStateMachine


def test_a_fault_is_handled_when_the_next_rank_is_watched(caplog):
    with caplog.at_level(logging.INFO, "nvrx_core"):
        for wanted in (False, True):
            machine = RankMonitorStateMachine(log=wanted)
            for _ in range(2):
                machine.attached()
                machine.connection_lost()
            machine.attached()
            machine.attached()  # after it has shut its monitoring down
    assert caplog.messages == [
        f"[NestedRestarter] name=[InJob] state={state}"
        for state in ("initialize", *["handling stage=starting", "handling stage=completed"] * 2)
    ]


@pytest.mark.parametrize("final", [RankMonitorState.FINALIZED, RankMonitorState.ABORTED])
def test_a_final_state_is_not_left(final):
    machine = RankMonitorStateMachine()
    machine.transition_to(final)
    with pytest.raises(InvalidStateTransitionException, match=f"{final.name} -> HANDLING_START; {final.name} is final"):
        machine.transition_to(RankMonitorState.HANDLING_START)
