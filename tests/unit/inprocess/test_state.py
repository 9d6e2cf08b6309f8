"""The state of a rank, from the environment and back."""

import pytest

from nvrx_core.inprocess.state import FrozenState, Mode, State
from nvrx_core.settings import environment


@pytest.fixture
def ranked(leak_check, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")


def test_the_state_on_entry_is_that_of_the_environment(ranked):
    state = State.from_env()
    assert (state.rank, state.world_size, state.initial_rank, state.initial_world_size) == (1, 3, 1, 3)
    assert (state.iteration, state.mode, state.active_rank) == (0, Mode.INITIALIZED, None)


def test_an_active_rank_is_told_to_torch(ranked):
    State(rank=2, world_size=3, active_rank=0, active_world_size=2).set_distributed_vars()
    assert environment.rank_and_world_size() == (0, 2)


def test_a_reserve_is_not(ranked):
    State(rank=2, world_size=3, active_rank=None, active_world_size=2, mode=Mode.INACTIVE).set_distributed_vars()
    assert environment.rank_and_world_size() == (0, 1)


def test_a_snapshot_does_not_change(ranked):
    state = State.from_env()
    frozen = state.freeze()
    state.advance()
    assert (frozen.iteration, state.iteration) == (0, 1)
    assert isinstance(frozen, FrozenState)
    with pytest.raises(AttributeError):
        frozen.rank = 7
