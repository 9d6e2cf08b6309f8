"""What FSDP1 leaves of its flat parameters when a step is interrupted."""

import contextlib
import gc
import weakref

import pytest
import torch
from nvrx_lightning.restart.flat_parameters import cut_cycles
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore


@pytest.fixture(autouse=True)
def group():
    """Two ranks, of which one exists: its collectives do nothing."""
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    distributed.destroy_process_group()


class Interrupt(torch.autograd.Function):
    """Ends the forward pass or the backward pass."""

    @staticmethod
    def forward(context, value, where):
        context.where = where
        if where == "forward":
            raise InterruptedError
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        if context.where == "backward":
            raise InterruptedError
        return gradient, None


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.first.tied = self.first.weight

    def forward(self, value, where):
        return self.last(Interrupt.apply(self.first(value), where)).sum()


def interrupted(where, use_orig_params):
    """A sharded model after one step and the part of another."""
    model = FullyShardedDataParallel(
        Model(), auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}), use_orig_params=use_orig_params,
        device_id=torch.device("cpu"),
    )  # fmt: skip
    model(torch.ones(2, 4), "").backward()
    with contextlib.suppress(InterruptedError):
        loss = model(torch.ones(2, 4), where)
        if where != "between":
            loss.backward()
    return model


@pytest.mark.parametrize("use_orig_params", [True, False])
@pytest.mark.parametrize("where", ["forward", "between", "backward", "nowhere"])
def test_the_parameters_of_an_interrupted_step_are_freed(where, use_orig_params):
    model = interrupted(where, use_orig_params)
    parameters = [weakref.ref(each._handle.flat_param) for each in model.modules() if getattr(each, "_handle", None)]
    assert len(parameters) == 2
    cut_cycles(model)
    cut_cycles(model)  # nothing is left to cut
    del model
    gc.collect()
    assert [each() for each in parameters] == [None, None]


def test_a_model_without_flat_parameters_stays_as_it_is():
    model = torch.nn.Linear(1, 1)
    cut_cycles(model)
    assert len(list(model.parameters())) == 2
