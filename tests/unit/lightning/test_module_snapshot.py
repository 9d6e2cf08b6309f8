"""A model comes back as it was: its modes, its `forward`, its weights, its parts."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from nvrx_lightning.restart.module_snapshot import ModuleSnapshot


def model_of() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))


def spoilt(model: torch.nn.Sequential) -> None:
    """What an attempt may leave."""
    model.eval()
    model.forward = lambda *_: None  # type: ignore[method-assign, assignment]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.data.fill_(7)
    model[1].running_mean.fill_(7)  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_model_comes_back_as_it_was(rebuilt):
    model = model_of()
    model[1].eval()  # frozen by the user
    before = copy.deepcopy(model.state_dict())
    snapshot = ModuleSnapshot(model, keep_weights=True, rebuilt=rebuilt)
    for _ in range(2):
        spoilt(model)
        snapshot.restore(weights=True)
        assert [each.training for each in model] == [True, False, True]
        assert "forward" not in vars(model)
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_part_that_torch_jit_has_compiled_comes_back():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.jit.script(torch.nn.BatchNorm1d(3)))
    before = copy.deepcopy(model.state_dict())
    snapshot = ModuleSnapshot(model, keep_weights=True, rebuilt=False)
    model(torch.ones(4, 2)).sum().backward()
    model.eval()
    snapshot.restore(weights=True)
    assert model[1].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_of_a_checkpoint_are_not_overwritten():
    model = model_of()
    snapshot = ModuleSnapshot(model, keep_weights=True, rebuilt=False)
    spoilt(model)
    snapshot.restore(weights=False)
    assert (model[0].weight == 7).all()  # type: ignore[comparison-overlap, union-attr]


def test_parts_that_an_attempt_makes_are_taken_away_and_plain_attributes_return():
    class Late(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body: Any = None

    model = Late()
    snapshot = ModuleSnapshot(model, keep_weights=False, rebuilt=True)
    model.body = torch.nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: None)
    model.__class__ = type("Sharded", (Late,), {})
    snapshot.restore(weights=True)
    assert model.body is None
    assert not list(model.parameters())
    assert not model._forward_hooks
    assert type(model) is Late


def test_replaced_parameters_are_freed_although_they_are_part_of_a_cycle():
    model = model_of()
    snapshot = ModuleSnapshot(model, keep_weights=False, rebuilt=True)
    replaced = weakref.ref(model[0].weight)
    model[0].__dict__["itself"] = model[0]
    gc.disable()
    try:
        snapshot.restore(weights=True)
    finally:
        gc.enable()
    assert replaced() is None


def test_a_model_with_parameters_to_come_is_rebuilt():
    snapshot = ModuleSnapshot(torch.nn.LazyLinear(3), keep_weights=False, rebuilt=False)
    assert snapshot.rebuilt
    assert snapshot.has_weights


def test_what_was_frozen_stays_frozen_and_gradients_go():
    model = model_of()
    model[0].weight.requires_grad_(False)  # type: ignore[union-attr, operator]
    snapshot = ModuleSnapshot(model, keep_weights=False, rebuilt=False)
    model[0].weight.requires_grad_(True)  # type: ignore[union-attr, operator]
    model[0].bias.grad = torch.ones(3)
    snapshot.restore(weights=False)
    assert not model[0].weight.requires_grad
    assert model[0].bias.grad is None


class Partial(torch.nn.Module):
    """A model that saves a part of its weights; it has buffers that it does not save."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.register_buffer("steps", torch.zeros(()), persistent=False)
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.register_buffer("average", None)
        self.extra = 1

    def get_extra_state(self) -> int:
        return self.extra

    def set_extra_state(self, state: int) -> None:
        self.extra = state

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: each for name, each in super().state_dict(*args, **kwargs).items() if "base" not in name}


def test_what_a_model_does_not_save_comes_back_too():
    model = Partial()
    weight, adapter = model.base.weight, model.adapter.weight
    before = [weight.tolist(), adapter.tolist()]
    snapshot = ModuleSnapshot(model, keep_weights=True, rebuilt=False)
    for _ in range(2):
        weight.data.fill_(7)
        adapter.data.fill_(7)
        model.steps.fill_(7)
        model.cache, model.average, model.extra = torch.ones(5), torch.ones(1), 7  # type: ignore[assignment]
        snapshot.restore(weights=True)
        assert (model.base.weight is weight, model.adapter.weight is adapter) == (True, True)
        assert [weight.tolist(), adapter.tolist()] == before
        assert (model.steps.item(), model.cache.tolist(), model.average, model.extra) == (0, [0, 0], None, 1)


def test_tied_weights_stay_tied():
    model = model_of()
    model.append(torch.nn.Linear(2, 3))
    model[3].weight = model[0].weight
    snapshot = ModuleSnapshot(model, keep_weights=True, rebuilt=False)
    snapshot.restore(weights=True)
    assert model[3].weight is model[0].weight


class Late(torch.nn.Module):
    """Its head is made by its setup."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(2, 2)
        self.head: Any = None

    def setup(self) -> None:
        if self.head is None:
            self.head = torch.nn.Linear(2, 1)


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_a_layer_that_setup_makes_is_made_anew_unless_a_checkpoint_has_its_weights(from_checkpoint):
    model = Late()
    snapshot = ModuleSnapshot(model, keep_weights=True, rebuilt=False)
    model.setup()
    made = model.head
    snapshot.restore(weights=not from_checkpoint)
    assert (model.head is made) == from_checkpoint
    model.setup()
    assert (model.head is made) == from_checkpoint
    assert "head" in dict(model.named_modules())


class Guarded(torch.nn.Module):
    """Creates a buffer in its first step, and notes that in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ready = False

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if not self.is_ready:
            self.register_buffer("mask", torch.ones(2))
            self.is_ready = True
        return batch * self.mask


def test_the_flag_that_guards_a_buffer_is_restored_with_it():
    model = Guarded()
    snapshot = ModuleSnapshot(model, keep_weights=True, rebuilt=False)
    for _ in range(2):
        assert model(torch.ones(2)).sum() == 2
        snapshot.restore(weights=True)
        assert not model.is_ready


@pytest.mark.parametrize("weights", [False, True])
def test_a_parameter_that_was_renamed_has_its_name_again(weights):
    model = model_of()
    names = set(model.state_dict())
    snapshot = ModuleSnapshot(model, keep_weights=True, rebuilt=False)
    for _ in range(2):
        torch.nn.utils.prune.l1_unstructured(model[0], "weight", 0.5)  # type: ignore[no-untyped-call]
        model(torch.ones(2, 2))
        snapshot.restore(weights=weights)
        assert set(model.state_dict()) == names
        assert model[0].weight.requires_grad  # type: ignore[union-attr]
        assert not model[0]._forward_pre_hooks
