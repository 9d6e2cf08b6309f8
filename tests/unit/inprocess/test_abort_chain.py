"""The parts of an abort: in which order they run, in which thread, and that each stands alone."""

import logging

import pytest

from nvrx_core.errors import ParameterError
from nvrx_core.inprocess import Wrapper
from nvrx_core.inprocess.abort import Abort, AbortChain, AbortPhase, AbortTorchDistributed, steps_of
from nvrx_core.inprocess.compose import Compose
from nvrx_core.rank_assignment.base import AssignmentState

STATE = AssignmentState(rank=0, world_size=1).freeze()
BEFORE, AFTER, MAIN = AbortPhase


class Torch(AbortTorchDistributed):
    """Torch's abort, noted and not carried out."""

    def __init__(self, done, error=None):
        self.done, self.error = done, error

    def __call__(self, state):
        self.done.append("torch")
        if self.error is not None:
            raise self.error
        return state


class Part(Abort):
    def __init__(self, name, done, phase=None, *, error=None):
        self.name, self.done, self.phase, self.error = name, done, phase, error

    def __call__(self, state):
        self.done.append(self.name)
        if self.error is not None:
            raise self.error
        return state


@pytest.fixture
def done(monkeypatch):
    """What was run; the default abort of torch's groups is noted as well."""
    done = []
    monkeypatch.setattr(AbortTorchDistributed, "__call__", lambda self, state: done.append("torch"))
    return done


def test_parts_without_a_phase_run_as_composed(done):
    chain = AbortChain(Compose(Part("last", done), Torch(done), Part("first", done)))
    chain.run(STATE)
    assert done == ["first", "torch", "last"]
    assert chain.main == []


def test_compositions_may_be_nested(done):
    AbortChain(Compose(Compose(Part("d", done), Part("c", done)), Compose(Torch(done), Part("a", done)))).run(STATE)
    assert done == ["a", "torch", "c", "d"]


@pytest.mark.parametrize("torchs_place", range(4))
def test_a_phase_counts_wherever_the_composition_has_its_part(done, torchs_place):
    parts = [Part("main", done, MAIN), Part("after", done, AFTER), Part("before", done, BEFORE)]
    parts.insert(torchs_place, Torch(done))
    chain = AbortChain(Compose(*parts))
    chain.run(STATE)
    assert done == ["before", "torch", "after"]
    chain.run_in_main_thread(STATE)
    assert done == ["before", "torch", "after", "main"]


def test_phases_count_without_torchs_abort_as_well(done):
    parts = [Part("before", done, BEFORE), Part("in between", done), Part("after", done, AFTER)]
    AbortChain(Compose(*parts)).run(STATE)
    assert done == ["before", "in between", "after"]


def test_a_part_that_raises_is_named_and_the_others_run(done, caplog):
    parts = Part("c", done), Part("b", done, error=KeyboardInterrupt("injected")), Torch(done), Part("a", done, BEFORE)
    chain = AbortChain(Compose(*parts))
    with caplog.at_level(logging.DEBUG, "nvrx_core.inprocess"):
        chain.run(STATE)
    assert done == ["a", "torch", "b", "c"], "torch's groups are aborted once"
    failed = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(failed) == 1
    assert failed[0].startswith("abort failed in Part after ")
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG", "ERROR", "DEBUG"]


def test_a_part_in_the_main_thread_that_raises_is_named_and_the_others_run(done, caplog):
    AbortChain(Compose(Part("b", done, MAIN), Part("a", done, MAIN, error=ValueError("injected")))).run_in_main_thread(
        STATE
    )
    assert done == ["a", "b"]
    assert "abort failed in Part" in caplog.messages[0]


def test_torchs_groups_are_aborted_when_a_part_or_their_own_abort_fails(done):
    AbortChain(Part("alone", done, error=ValueError())).run(STATE)
    assert done == ["alone", "torch"]
    done.clear()
    AbortChain(Compose(Part("after", done), Torch(done, ValueError()))).run(STATE)
    assert done == ["torch", "after", "torch"]


def test_no_abort_is_no_part(done):
    chain = AbortChain(None)
    chain.run(STATE)
    chain.run_in_main_thread(STATE)
    assert done == []


def test_a_composition_with_a_call_of_its_own_is_one_part(done):
    class Mine(Compose):
        def __call__(self, state):
            done.append("mine")
            return state

    mine = Mine(Part("a", done), Part("b", done))
    AbortChain(mine).run(STATE)
    assert done == ["mine"]
    assert steps_of(mine) == [mine]


def test_a_part_without_a_result_does_not_take_the_state_from_the_next(done):
    class Silent(Abort):
        def __call__(self, state):
            done.append(state)

    AbortChain(Compose(Silent(), Silent())).run(STATE)
    assert done == [STATE, STATE]


def test_a_phase_that_is_none_is_refused_before_anything_is_started():
    with pytest.raises(ParameterError, match=r"Part\.phase='before_torch': must be a member of .*AbortPhase"):
        Wrapper(abort=Compose(AbortTorchDistributed(), Part("a", [], "before_torch")))
