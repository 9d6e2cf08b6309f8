"""What ends an interrupted iteration of Megatron: the parts of its abort, and the steps of its finalizer."""

from __future__ import annotations

import signal

import pytest
import torch
from nvrx_megatron import MegatronAbort, MegatronFinalize, finalize

from nvrx_core.inprocess.abort import AbortChain, AbortPhase, phase_of
from nvrx_core.rank_assignment.base import AssignmentState

STATE = AssignmentState(rank=0, world_size=1).freeze()
BEFORE, AFTER, MAIN = AbortPhase


def test_writers_end_before_the_groups_and_transformer_engine_around_them():
    chain = AbortChain(MegatronAbort())
    assert [(type(step).__name__, phase_of(step)) for step in [*chain.beside, *chain.main]] == [
        ("NestedRestarterHandlingStarting", None),
        ("AbortCheckpointWriters", None),
        ("_TransformerEngine", BEFORE),
        ("AbortTorchDistributed", None),
        ("_TransformerEngine", AFTER),
        ("_TransformerEngine", MAIN),
    ]


@pytest.fixture
def done(monkeypatch):
    """The steps of the finalizer that were taken; none of them does anything."""
    done = []
    for name in ("forget_saves", "drop_objects", "drop_state"):
        monkeypatch.setattr(finalize, name, lambda *_, name=name: done.append(name))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empty_cache"))
    return done


@pytest.mark.parametrize(("device", "emptied"), [(0, ["empty_cache"]), (None, [])], ids=["cuda", "no cuda"])
def test_the_cache_is_emptied_when_nothing_refers_to_it_any_more(done, monkeypatch, device, emptied):
    monkeypatch.setattr(finalize, "cuda_device", lambda: device)
    assert MegatronFinalize(empty_cuda_cache=True)(STATE) is STATE
    assert done == ["forget_saves", "drop_objects", "drop_state", *emptied]


def test_the_cache_stays_unless_it_is_to_be_emptied(done, monkeypatch):
    monkeypatch.setattr(finalize, "cuda_device", lambda: 0)
    MegatronFinalize()(STATE)
    assert "empty_cache" not in done


def test_signal_handlers_are_those_of_before_the_first_iteration(done):
    before = signal.getsignal(signal.SIGUSR2)
    restore = MegatronFinalize()
    try:
        signal.signal(signal.SIGUSR2, lambda *_: None)
        restore(STATE)
        assert signal.getsignal(signal.SIGUSR2) == before
    finally:
        signal.signal(signal.SIGUSR2, before)
