"""The states of a checkpoint are found again under a token that all ranks derive alike."""

from __future__ import annotations

from typing import Any

from nvrx_lightning.restart.rank_states import KEPT, RankStates


def state(number: int) -> Any:
    return f"state {number}"


def test_a_rank_that_failed_in_a_save_finds_its_later_checkpoints():
    whole, failed = RankStates(), RankStates()
    missed = whole.keep(0, 5, state(0))
    for number, (attempt, step) in enumerate(((1, 10), (1, 10), (2, 10))):
        token = whole.keep(attempt, step, state(number))
        assert failed.keep(attempt, step, state(number)) == token
        assert failed.of(token, expected=True) == state(number)
    assert failed.of(missed, expected=False) is None


def test_each_checkpoint_has_its_own_state():
    states = RankStates()
    tokens = [states.keep(0, step, state(number)) for number, step in enumerate((5, 5, 5, 6))]
    assert [states.of(token, expected=True) for token in tokens] == [state(number) for number in range(4)]


def test_a_rank_that_failed_before_a_save_goes_on_from_where_it_was(caplog):
    states, others = RankStates(), RankStates()
    states.keep(0, 5, state(0))
    states.interrupted(0, 10, state(1))
    others.keep(0, 5, state(0))
    assert states.of(others.keep(0, 10, state(2)), expected=True) == state(1)
    assert states.of(others.keep(0, 15, state(2)), expected=False) is None
    assert not caplog.text


def test_a_checkpoint_whose_state_is_missing_is_told_once(caplog):
    states = RankStates()
    first = states.keep(0, 0, state(0))
    for step in range(1, KEPT + 1):
        states.keep(0, step, state(step))
    assert states.of(None, expected=True) is None
    for expected, lines in ((False, 0), (True, 1), (True, 1)):
        assert states.of(first, expected=expected) is None
        assert len(caplog.records) == lines


def test_the_states_of_checkpoints_that_are_removed_are_dropped():
    states = RankStates()
    tokens = [states.keep(0, step, state(step)) for step in range(3)]
    states.retain({tokens[1], "of another process"})
    assert [states.of(token, expected=False) for token in tokens] == [None, state(1), None]
