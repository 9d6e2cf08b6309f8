"""A snapshot of a model at the start of its fit: modes, hooks, and weights.

A fault can occur in validation, where the model is in eval mode; while `forward` is replaced for the call through DDP;
or while an optimizer has frozen other parameters. Without a restore, the next attempt would train in this state, for
example with dropout and batch norm off.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.nn.parameter import is_lazy

__all__ = ["ModuleSnapshot"]

_MEMBERS: Final = ("_parameters", "_buffers", "_modules")
_HOOKS: Final = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks",
)  # fmt: skip
_PLAIN: Final = (type(None), bool, int, float, str)


class ModuleSnapshot:
    """The state of a model at the start of its fit.

    Args:
        module: the model.
        keep_weights: copy its weights to host memory.
        rebuilt: `configure_model` creates or changes submodules in each attempt, for example shards them in place; then
            the submodules are copied as they are, and restored before each attempt.
    """

    def __init__(self, module: torch.nn.Module, *, keep_weights: bool, rebuilt: bool) -> None:
        self.module = module
        self._forward = vars(module).get("forward")
        self._modes = {name: each.training for name, each in module.named_modules()}
        self._grads = {name: each.requires_grad for name, each in module.named_parameters()}
        self.rebuilt = rebuilt or any(is_lazy(each) for each in module.parameters())
        self.has_weights = keep_weights or self.rebuilt
        self._class = type(module)
        self._plain = {name: each for name, each in vars(module).items() if not name.startswith("_")}
        self._parts = _copied_parts(module) if self.rebuilt else {}
        self._structure = None if self.rebuilt else _Structure(module)
        self._weights = _Weights(module) if keep_weights and not self.rebuilt else None

    def restore(self, *, weights: bool, in_memory: bool = False) -> None:
        """Restore the model.

        Args:
            weights: restore the weights, too; else a checkpoint has them.
            in_memory: a step that a fault has interrupted may still be done: gradients stay.
        """
        module = self.module
        vars(module).pop("forward", None)
        if self._forward is not None:
            vars(module)["forward"] = self._forward
        if self._structure is not None:
            self._structure.restore(wholly=weights)
        if self.rebuilt:
            self._restore_parts(kept=in_memory)
        elif weights and self._weights is not None:
            self._weights.restore()
        for name, each in module.named_modules():
            each.training = self._modes.get(name, each.training)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(self._grads.get(name, parameter.requires_grad))
            if not in_memory:
                parameter.grad = None

    def _restore_parts(self, *, kept: bool) -> None:
        module = self.module
        replaced = [] if kept else [weakref.ref(each) for each in module.parameters()]
        module.__class__ = self._class
        vars(module).update(copy.deepcopy(self._parts))
        vars(module).update({name: each for name, each in self._plain.items() if name not in vars(module)})
        _free(replaced)


def _free(parameters: list[weakref.ref[torch.nn.Parameter]]) -> None:
    """Collect replaced parameters that are part of a cycle, as sharded ones are.

    Python's collector would leave them for long: they are few objects, whatever they hold of the device's memory.
    """
    if any(reference() is not None for reference in parameters):
        gc.collect()


def _copied_parts(module: torch.nn.Module) -> dict[str, Any]:
    names = ("_modules", "_parameters", "_buffers", *_HOOKS)
    memo = {id(module): module}
    return copy.deepcopy({name: vars(module)[name] for name in names if name in vars(module)}, memo)


class _Structure:
    """The parameters, buffers and submodules of a model's modules.

    Pruning and weight norm rename parameters, so that no checkpoint would match. A layer that `setup` creates has no
    initial weights: without a checkpoint it is removed and created again.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        parts = (part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule))  # they stay as made
        self._parts = [(part, type(part), _contents(part), _plain(part)) for part in parts]

    def restore(self, *, wholly: bool) -> None:
        """Restore what was removed.

        Args:
            wholly: also remove what was added.
        """
        for part, kind, contents, plain in self._parts:
            if _lacks(part, contents) or (wholly and _has_more(part, contents)):
                part.__class__ = kind
                for name in (name for members in _MEMBERS for name in contents[members]):
                    vars(part).pop(name, None)  # the tensor that a hook computes
                vars(part).update({name: copy.copy(each) for name, each in contents.items()})
                missing = {name: each for name, each in plain.items() if each is None and name not in vars(part)}
                vars(part).update(plain if wholly else missing)


def _contents(part: torch.nn.Module) -> dict[str, dict[str, Any]]:
    return {name: copy.copy(vars(part)[name]) for name in (*_MEMBERS, *_HOOKS) if name in vars(part)}


def _plain(part: torch.nn.Module) -> dict[str, Any]:
    """Return the attributes of a plain type, such as the flag that a layer is created.

    A layer that is assigned to an attribute that is None moves it to the submodules.
    """
    return {name: each for name, each in vars(part).items() if not name.startswith("_") and type(each) in _PLAIN}


def _lacks(part: torch.nn.Module, contents: dict[str, dict[str, Any]]) -> bool:
    return any(contents[members].keys() - vars(part)[members].keys() for members in ("_parameters", "_buffers"))


def _has_more(part: torch.nn.Module, contents: dict[str, dict[str, Any]]) -> bool:
    return any(vars(part)[members].keys() - contents[members].keys() for members in _MEMBERS)


class _Weights:
    """Copies of a model's parameters and all its buffers, and of the rest of its `state_dict`, which may lack some."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._tensors = {name: _host_copy(each) for name, each in _tensors(module)}
        saved = module.state_dict()
        self._others = {name: _host_copy(each) for name, each in saved.items() if name not in self._tensors}
        buffers = ((part, name, each) for part in module.modules() for name, each in part._buffers.items())
        self._empty = [(part, name) for part, name, each in buffers if each is None]

    @torch.no_grad()
    def restore(self) -> None:
        """Copy the values back in place."""
        for part, name in self._empty:
            setattr(part, name, None)
        for name, each in _tensors(self._module):
            if name in self._tensors:
                _put_back(each, self._tensors[name])
        if self._others:
            self._module.load_state_dict(copy.deepcopy(self._others), strict=False)


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _put_back(present: torch.Tensor, initial: torch.Tensor) -> None:
    if present.shape == initial.shape and 0 not in present.stride():
        present.copy_(initial)
    else:  # a buffer that has grown, or one that is expanded
        present.data = initial.to(present.device, copy=True)


def _host_copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    return copy.deepcopy(value)
