"""What FSDP1 leaves on its parameters when a step is interrupted."""

import functools
import gc
import types
import weakref

import torch
from nvrx_lightning.restart.flat_parameters import HOOK, remove_hooks


class Sharded(torch.nn.Module):
    """A module as FSDP1 makes it, in its forward pass."""

    def __init__(self):
        super().__init__()
        self._handle = types.SimpleNamespace(flat_param=torch.nn.Parameter(torch.ones(3)))
        parameter = self._handle.flat_param
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        hook = node.register_hook(functools.partial(lambda handle, *gradients: None, self._handle))
        setattr(parameter, HOOK, (node, hook))


def test_the_parameters_of_an_interrupted_step_are_freed():
    model = torch.nn.Sequential(Sharded(), torch.nn.Linear(1, 1))
    parameter = weakref.ref(model[0]._handle.flat_param)
    remove_hooks(model)
    del model
    gc.collect()
    assert parameter() is None


def test_a_model_after_its_step_stays_as_it_is():
    model = torch.nn.Sequential(Sharded())
    remove_hooks(model)
    remove_hooks(model)
    assert not hasattr(model[0]._handle.flat_param, HOOK)
