"""What is freed between iterations, and what that costs: full collections are counted, not timed."""

import gc
import traceback
import weakref

import pytest
import torch

from nvrx_core.inprocess.garbage import Garbage


@pytest.fixture
def garbage():
    gc.collect()
    gc.freeze()
    yield Garbage()
    gc.unfreeze()


@pytest.fixture
def full(monkeypatch):
    """The full collections that were asked for."""
    counted, collect = [], gc.collect

    def count(generation=2):
        counted.extend([generation] if generation == 2 else [])
        return collect(generation)

    monkeypatch.setattr(gc, "collect", count)
    return counted


class Trainer:
    """What holds the model: the function's frames only hold this."""

    def __init__(self, cyclic=False):
        self.model = Model() if not cyclic else CyclicModel()

    def fit(self):
        raise ValueError("planted")


class Model(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 2)


class CyclicModel(Model):
    def __init__(self):
        super().__init__()
        object.__setattr__(self, "myself", self)


def local(keep):
    model = Model()
    keep(model)
    raise ValueError("planted")


def attribute(keep):
    trainer = Trainer()
    keep(trainer.model)
    trainer.fit()


def element(keep):
    state = {"models": Model(), "step": 1}
    keep(state["models"])
    raise ValueError("planted")


def closure(keep):
    model = Model()

    def step():
        model.zero_grad()
        raise ValueError("planted")

    keep(model)
    step()


def cyclic(keep):
    trainer = Trainer(cyclic=True)
    gc.collect(1)  # it grows old
    keep(trainer.model)
    trainer.fit()


def iterate(garbage, function, keep=None):
    """One iteration that fails; a weak reference to its model."""
    references = []
    try:
        function(lambda model: (references.append(weakref.ref(model)), keep and keep(model)))
    except ValueError as error:
        garbage.watch(error.__traceback__)
        traceback.clear_frames(error.__traceback__)
    garbage.collect()
    return references[0]


@pytest.mark.parametrize("function", [local, attribute, element, closure])
def test_what_dies_with_its_frames_costs_no_full_collection(garbage, full, function):
    assert iterate(garbage, function)() is None
    assert full == []
    assert gc.get_freeze_count() > 0
    assert len(gc.get_objects()) < 1000, "what the iteration has imported is not looked at again"


def test_a_cycle_is_freed_by_one_full_collection(garbage, full):
    assert iterate(garbage, cyclic)() is None
    assert full == [2]


def test_without_a_model_there_is_a_full_collection(garbage, full):
    def fail():
        raise ValueError("planted")

    try:
        fail()
    except ValueError as error:
        garbage.watch(error.__traceback__)
    garbage.collect()
    assert full == [2]


@pytest.mark.parametrize("function", [local, cyclic])
def test_a_model_that_is_held_from_outside_dies_when_it_is_let_go(garbage, function):
    held = []
    first = iterate(garbage, function, keep=held.append)
    assert first() is held[0]
    for _ in range(3):
        iterate(garbage, function)
    held.clear()
    iterate(garbage, function)
    gc.collect()  # Python's own collector, sooner or later
    assert first() is None


def test_a_model_that_is_held_from_outside_costs_one_full_collection(garbage, full):
    held = []
    iterate(garbage, local, keep=held.append)

    def again(keep):
        model = held[0]
        keep(model)
        raise ValueError("planted")

    for _ in range(5):
        iterate(garbage, again)
    assert full == [2]


def test_a_model_of_a_later_iteration_is_no_reason_to_keep_garbage(garbage):
    iterate(garbage, local)
    held = []
    later = iterate(garbage, cyclic, keep=held.append)
    held.clear()
    iterate(garbage, local)
    assert later() is None
