"""What is freed between iterations, and what that costs: full collections are counted, not timed."""

import gc
import sys
import threading
import traceback
import types
import weakref
from collections import Counter, OrderedDict, deque

import pytest
import torch

from nvrx_core.process.garbage import Garbage, _any_training_object, _parts, _training_objects


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
        raise ValueError("injected")


class Model(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 2)


class Optimizer(torch.optim.Optimizer):
    def __init__(self):
        """Without what torch imports for its own."""


class CyclicModel(Model):
    def __init__(self):
        super().__init__()
        object.__setattr__(self, "myself", self)


def local(keep):
    model = Model()
    keep(model)
    raise ValueError("injected")


def attribute(keep):
    trainer = Trainer()
    keep(trainer.model)
    trainer.fit()


def element(keep):
    state = {"models": Model(), "step": 1}
    keep(state["models"])
    raise ValueError("injected")


def closure(keep):
    model = Model()

    def step():
        model.zero_grad()
        raise ValueError("injected")

    keep(model)
    step()


def training_step(keep):
    """What trains a model for one step, and alone knows it."""
    model = Model()
    keep(model)

    def step():
        model.zero_grad()

    return step


def held_in_a_closure(keep):
    trainer = types.SimpleNamespace(step=training_step(keep))
    trainer.step()
    raise ValueError("injected")


def deep(keep):
    strategy = {"loops": [{"epoch": types.SimpleNamespace(trainer=Trainer())}]}
    keep(strategy["loops"][0]["epoch"].trainer.model)
    raise ValueError("injected")


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


@pytest.mark.parametrize("function", [local, attribute, element, closure, held_in_a_closure, deep])
def test_objects_that_die_with_their_frames_cost_no_full_collection(garbage, full, function):
    assert iterate(garbage, function)() is None
    assert full == []
    assert gc.get_freeze_count() > 0
    assert len(gc.get_objects()) < 1000, "what the iteration has imported is not looked at again"


def test_a_cycle_is_freed_by_one_full_collection(garbage, full):
    assert iterate(garbage, cyclic)() is None
    assert full == [2]


def test_an_optimizer_in_a_cycle_further_down_than_its_model_is_freed(garbage, full):
    references = []

    def apart(keep):
        model = Model()
        keep(model)
        outer = types.SimpleNamespace(inner=types.SimpleNamespace(core=types.SimpleNamespace()))
        outer.inner.core.outer, outer.inner.core.optimizer = outer, Optimizer()
        references.append(weakref.ref(outer.inner.core.optimizer))
        gc.collect(1)  # it grows old
        raise ValueError("injected")

    assert iterate(garbage, apart)() is None
    assert references[0]() is None
    assert full == [2]


def test_without_a_model_there_is_a_full_collection(garbage, full):
    def fail():
        raise ValueError("injected")

    try:
        fail()
    except ValueError as error:
        garbage.watch(error.__traceback__)
    garbage.collect()
    assert full == [2]


@pytest.mark.parametrize("function", [local, cyclic])
def test_a_model_referenced_from_outside_dies_when_it_is_released(garbage, function):
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
        raise ValueError("injected")

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


class Secretive(Exception):
    """Shows nothing of itself."""

    def __getattribute__(self, name):
        if name in ("args", "__dict__"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


class AboutTrainer(ValueError):
    def __init__(self, trainer):
        super().__init__("injected")
        self.trainer = trainer


def fail_about(keep):
    trainer = Trainer(cyclic=True)
    gc.collect(1)  # it grows old
    keep(trainer.model)
    raise AboutTrainer(trainer)


@pytest.mark.parametrize("later", [False, True], ids=["first iteration", "after a freeze"])
def test_what_an_exception_refers_to_is_freed_when_it_is_released(garbage, full, later):
    if later:
        iterate(garbage, local)
    references = []
    try:
        fail_about(lambda model: references.append(weakref.ref(model)))
    except AboutTrainer as error:
        failure = error
    garbage.watch(failure.__traceback__)
    traceback.clear_frames(failure.__traceback__)
    garbage.postpone([failure])
    full.clear()
    garbage.collect()
    assert full == [], "in vain: the failure is still needed"
    failure.__traceback__ = None
    del failure
    garbage.collect_postponed()
    assert references[0]() is None
    assert full == [2]
    garbage.collect_postponed()
    assert full == [2]


@pytest.mark.parametrize(
    ("error", "refers"),
    [
        (ValueError("text", 7, 1.5, None, b"bytes"), False), (KeyError(("a", "b")), True), (ValueError([1]), True),
        (OSError(2, "no such file", "path"), False), (AboutTrainer(None), False), (AboutTrainer(object()), True),
        (Secretive("text"), True),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_collection_is_postponed_for_an_exception_that_refers_to_objects(garbage, error, refers):
    error.add_note("a note")
    garbage.postpone([ValueError(), error])
    assert garbage._postponed is refers


@pytest.mark.parametrize("kind", [dict.fromkeys, OrderedDict.fromkeys, Counter, list, deque, frozenset])
def test_a_large_container_is_not_searched(kind):
    assert all(number in _parts(kind(range(3))) for number in range(3))
    assert _parts(kind(range(100_000))) == []


def test_the_objects_of_the_wrapper_are_not_searched():
    """They lead to each of its threads and to all loggers of the process."""
    assert _parts(Trainer())
    assert _parts(Garbage()) == []


@pytest.mark.parametrize(("module", "searched"), [("nvrx_core.inprocess.wrap", False), ("nvrx_core_of_mine", True)])
def test_the_frames_of_the_wrapper_are_not_searched(module, searched):
    names = {"__name__": module, "model": Model()}
    exec("def fit():\n    held = model\n    raise ValueError('injected')\n", names)
    try:
        names["fit"]()
    except ValueError as error:
        found = _training_objects(error.__traceback__.tb_next)
    assert found == ([names["model"]] if searched else [])


def test_another_thread_may_build_a_tuple_meanwhile(garbage):
    failed, stop = [], threading.Event()

    def build():
        while not (stop.is_set() or failed):
            try:
                tuple(number for number in range(50))
            except SystemError as error:
                failed.append(error)

    def called_back(phase, info):
        return None

    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(1)
    gc.callbacks.append(called_back)
    thread = threading.Thread(target=build)
    many = [[] for _ in range(50_000)]
    thread.start()
    try:
        for _ in range(100):
            assert not _any_training_object()
    finally:
        stop.set()
        thread.join()
        gc.callbacks.remove(called_back)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    assert failed == []
    assert len(many) == 50_000
