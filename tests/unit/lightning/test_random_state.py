"""The random states of a checkpoint are found again under a token that all ranks derive alike."""

from __future__ import annotations

import torch
from nvrx_lightning.random_state import KEPT, RandomStates


def test_a_rank_that_failed_in_a_save_finds_its_later_checkpoints():
    whole, failed = RandomStates(), RandomStates()
    missed = whole.keep(0, 5)
    for attempt, step in ((1, 10), (1, 10), (2, 10)):
        token = whole.keep(attempt, step)
        assert failed.keep(attempt, step) == token
        assert failed.of(token, expected=True) is not None
    assert failed.of(missed, expected=False) is None


def test_each_checkpoint_has_its_own_states():
    states, drawn = RandomStates(), []
    tokens = []
    for step in (5, 5, 5, 6):
        tokens.append(states.keep(0, step))
        drawn.append(torch.rand(1).item())
    assert len(set(tokens)) == len(tokens)
    for token, number in zip(tokens, drawn, strict=True):
        state = states.of(token, expected=True)
        assert state is not None
        state.restore()
        assert torch.rand(1).item() == number


def test_a_checkpoint_whose_states_are_missing_is_told_once(caplog):
    states = RandomStates()
    first = states.keep(0, 0)
    for step in range(1, KEPT + 1):
        states.keep(0, step)
    for expected, lines in ((False, 0), (True, 1), (True, 1)):
        assert states.of(first, expected=expected) is None
        assert len(caplog.records) == lines
