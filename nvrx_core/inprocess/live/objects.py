"""The tensors of a training: how new objects take over old ones, and how another rank gets them.

`DTensor._local_tensor`, `DTensor.from_local`, `Tensor._version`, `FSDPModule._get_fsdp_state` and
`GradScaler._per_optimizer_states` are torch's; a test says when they move.
"""

from __future__ import annotations

import io
import itertools
import operator
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Placement
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from nvrx_core.inprocess.live.memory import Shard as ShardOfRank
from nvrx_core.inprocess.live.row import Stateful
from nvrx_core.values import value

__all__ = [
    "Left",
    "Objects",
    "adopt",
    "changed",
    "check_shared",
    "digests",
    "drop_interrupted",
    "is_scheduled",
    "receive",
    "require_gradients",
    "send",
    "shares",
    "stepped",
    "versions",
]

_WATCHED: Final = 6
"""Parameters of which a value is compared, of those that an optimizer steps and of the others."""
_ROW: Final = 1 << 15
"""Bytes."""
_WEIGHT: Final = 0x9E3779B97F4A7C1 | 1
"""Odd, and large enough for products to wrap around, which keeps all bits of a sum."""
_EXTRA: Final = "the extra states of the model"
_version_of, _grad_of, _requires_grad = map(operator.attrgetter, ("_version", "grad", "requires_grad"))
Versions = tuple[int, ...]
Values = tuple[tuple[float, torch.Size], ...]
Settings = list[list[dict[str, Any]]]


class TransferPort(Protocol):
    """Transfers with another rank, which has the counterparts in the same order."""

    def send(self, tensor: torch.Tensor) -> None:
        """Send a tensor; it may be changed after `finish`."""

    def receive(self, into: torch.Tensor) -> None:
        """Receive a tensor; it is there after `finish`."""

    def send_object(self, sent: Any) -> None:
        """Send what torch can save."""

    def receive_object(self) -> Any:
        """Receive it, and wait for it."""

    def finish(self) -> None:
        """Wait for all that have begun."""


@value
class Objects:
    """What the function has registered in an iteration.

    It refers to no module: those of FSDP2 are in cycles with their process groups.

    Attributes:
        names, parameters: of all tensors that only the advance changes, besides the optimizers' states.
        buffers: the persistent buffers of the model, which change anywhere.
        places: for each buffer, its module and its name there: a module may replace the tensor.
        optimizers: of the parameters.
        advance: does a step without any other rank.
        shared: objects that only the advance changes, by name.
        local: objects that change anywhere, by name; the extra states of modules are one.
        coordinates: which part of the sharded parameters this rank has.
        part_names: what the coordinates count that the caller has named.
        copies: new objects copy the old tensors instead of using them: other tensors view theirs.
        unfilled: the tensors that were on the meta device, with the names, the modules and the names there: what fills
            the model may replace them.
        rebuilt: of these, the buffers that are not persistent, by name: nothing else fills them after a fault.
        watched: the indices of some parameters, with and without an optimizer: what changes them by `.data` changes no
            version, but their values.
        averaged: the tensors of averages, with their modules and the names there: an average may replace them.
        corners: by these indices, which memory and shape the tensor has, and its last value: a tensor that shares it.
    """

    names: tuple[str, ...]
    parameters: tuple[torch.Tensor, ...]
    buffers: tuple[torch.Tensor, ...]
    places: tuple[tuple[weakref.ref[torch.nn.Module], str], ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    advance: Callable[[], object]
    shared: Mapping[str, Stateful]
    local: Mapping[str, Stateful]
    coordinates: ShardOfRank
    watched: tuple[int, ...] = ()
    part_names: tuple[str, ...] = ()
    copies: bool = False
    unfilled: tuple[tuple[str, weakref.ref[torch.nn.Module], str, torch.Tensor], ...] = ()
    rebuilt: Mapping[str, torch.Tensor] = field(default_factory=dict)
    averaged: tuple[tuple[weakref.ref[torch.nn.Module], str, torch.Tensor], ...] = ()
    corners: dict[int, tuple[tuple[object, ...], torch.Tensor]] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        device: torch.device = _local(self.parameters[0]).device
        return device

    @property
    def shard(self) -> ShardOfRank:
        """What this rank has: the coordinates, and a checksum of all names, shapes and groups of the optimizers.

        Objects of another layout (a stage of a pipeline, a group that was added later) are no replica of these.
        """
        numbers = {id(each): number for number, each in enumerate(self.parameters)}
        groups = [
            [[numbers.get(id(each)) for each in group["params"]] for group in optimizer.param_groups]
            for optimizer in self.optimizers
        ]
        shapes = [tuple(each.shape) for each in (*self.parameters, *self.buffers)]
        return (*self.coordinates, zlib.crc32(repr((self.names, shapes, groups)).encode()))

    def told(self, shard: ShardOfRank) -> str:
        """Return what a shard of these objects is, for a person."""
        *coordinates, _ = shard
        named = [
            f"{name} {coordinates[2 * number]} of {coordinates[2 * number + 1]}"
            for number, name in enumerate(self.part_names)
        ]
        rest = coordinates[2 * len(named) :]
        if rest:
            named.append(f"shard {rest}")
        return ", ".join(named) or "the parameters"

    def collect_buffers(self) -> None:
        """Copy the buffers that the model has replaced by other tensors into those that were registered."""
        for (module, name), registered in zip(self.places, self.buffers, strict=True):
            now = None if (there := module()) is None else getattr(there, name, None)
            if now is None or now is registered:
                continue
            if now.shape == registered.shape:
                with torch.no_grad():
                    registered.copy_(now)
            else:  # a buffer that grows: the layout is another one from now on
                registered.data = now.detach().clone()

    def follow_averages(self) -> None:
        """Let the registered tensors of averages have the storages of those that the averages have in their place.

        `to_empty` replaces buffers that are not on the meta device as well, and so does an assignment in the advance.
        What FSDP2 puts in place of a sharded parameter for a forward pass is another thing: the whole of it.
        """
        for module, name, registered in self.averaged:
            now = None if (there := module()) is None else getattr(there, name, None)
            if now is None or now is registered or now.is_meta or registered.is_meta:
                continue
            if not isinstance(registered, DTensor) and not isinstance(now, DTensor):
                registered.data = now.detach()
            elif (
                isinstance(registered, DTensor) and isinstance(now, DTensor) and now.placements == registered.placements
            ):
                registered._local_tensor = _local(now).detach()

    def take_filled(self) -> None:
        """Give the tensors that were on the meta device what the model has in their place, and put them there.

        `to_empty` and `load_state_dict(assign=True)` replace tensors; the optimizer has those that were registered.
        """
        seen = set()
        for _, module, name, registered in self.unfilled:
            if (there := module()) is None:
                continue
            tensors: dict[str, Any] = there._parameters if name in there._parameters else there._buffers
            now = tensors.get(name)
            if now is None or now is registered or now.is_meta:
                continue
            if id(registered) not in seen:  # else it is tied to one that was filled
                _fill(registered, _local(now).detach())
                registered.requires_grad_(now.requires_grad)
            tensors[name] = registered
            seen.add(id(registered))

    def check_filled(self) -> None:
        """Refuse tensors on the meta device.

        Raises:
            RuntimeError: for the first one.
        """
        if name := next((name for name, *_, each in self.unfilled if each.is_meta), ""):
            raise RuntimeError(f"start() with {name} on the meta device: fill the model that resume() was given")
        if any(each.is_meta for owner, parameter in _optimized(self) for each in _tensors(owner, parameter)):
            raise RuntimeError(
                "start() with an optimizer that has loaded its state before the model was filled, which has lost it: "
                "load the model first"
            )

    def fill_before_loading(self) -> None:
        """Let optimizers fill their parameters before they load a state, which goes to the device of these."""
        reference = weakref.ref(self)

        def fill(*_: object) -> None:
            objects = reference()
            if objects is not None and any(each.is_meta for *_, each in objects.unfilled):
                objects.take_filled()

        for optimizer in self.optimizers if self.unfilled else ():
            optimizer.register_load_state_dict_pre_hook(fill)

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        optimizers: Iterable[torch.optim.Optimizer],
        advance: Callable[[], object],
        *,
        shared: Mapping[str, Stateful],
        local: Mapping[str, Stateful],
        averages: Iterable[torch.nn.Module],
        part: Mapping[str, tuple[int, int]] | None = None,
        copies: bool = False,
    ) -> Objects:
        """Register the objects of an iteration.

        The parameters are taken now: an interrupted forward pass of FSDP2 leaves unsharded ones in its modules.

        Raises:
            TypeError, ValueError: for what cannot be kept in memory.
        """
        if isinstance(model, DistributedDataParallel):
            raise TypeError(
                "resume() takes the module before DistributedDataParallel(module, init_sync=False) wraps it"
            )
        for each in model.modules():
            _refuse_module(each)
        optimizers, averages = tuple(optimizers), tuple(averages)
        for optimizer in optimizers:
            _refuse(optimizer)
        named: dict[str, torch.Tensor] = dict(model.named_parameters())
        averaged = []
        for number, module in enumerate(averages):
            tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            named |= {f"averages[{number}].{name}": tensor for name, tensor in tensors.items()}
            for path, tensor in tensors.items():
                owner, _, name = path.rpartition(".")
                averaged.append((weakref.ref(module.get_submodule(owner)), name, tensor))
        if not named:
            raise ValueError("resume() was given a model without parameters")
        _refuse_lazy({**dict(model.named_buffers()), **named})
        parameters = tuple(named.values())
        known = {id(each) for each in parameters}
        for number, optimizer in enumerate(optimizers):
            if any(id(each) not in known for group in optimizer.param_groups for each in group["params"]):
                raise ValueError(
                    f"optimizer {number} ({type(optimizer).__name__}) has parameters that the model has not, which "
                    "would be lost: give resume() one module that has all, and make optimizers after fully_shard"
                )
            _refuse_hidden(optimizer, known)
        # By identity: wrappers, such as those of activation checkpointing, give other names in `state_dict`.
        persistent = {id(each) for each in model.state_dict(keep_vars=True).values()}
        buffers = {name: each for name, each in model.named_buffers() if id(each) in persistent}
        _refuse_expanded({**named, **buffers})
        parts = (name.rpartition(".") for name in buffers)
        places = tuple((weakref.ref(model.get_submodule(owner)), name) for owner, _, name in parts)
        if (extra := _ExtraStates.of((model, *averages))) is not None:
            local = {**local, _EXTRA: extra}
        part = part or {}
        coordinates = (*(number for each in part.values() for number in each), *_coordinates_of(parameters))
        unfilled = tuple(_unfilled((model, *averages)))
        lost = {id(each) for *_, each in unfilled} - known - persistent
        return cls(
            tuple(named), parameters, tuple(buffers.values()), places, optimizers, advance, shared, local,
            coordinates, _watched(parameters, optimizers), tuple(part), copies, unfilled,
            {name: each for name, _, _, each in unfilled if id(each) in lost}, tuple(averaged),
        )  # fmt: skip


class _ExtraStates:
    """What modules keep besides parameters and buffers, which their `state_dict` has and their code changes anywhere.

    Args:
        modules: by name, weakly.
    """

    def __init__(self, modules: Mapping[str, weakref.ref[torch.nn.Module]]) -> None:
        self._modules = modules

    @classmethod
    def of(cls, models: Iterable[torch.nn.Module]) -> _ExtraStates | None:
        """Return those of models and their modules; None if they have none.

        Raises:
            TypeError: for a state that cannot be copied.
        """
        own, found = torch.nn.Module, {}
        for number, model in enumerate(models):
            for name, each in model.named_modules():
                kind = type(each)
                if kind.get_extra_state is own.get_extra_state:
                    continue
                place = f"{number}.{name}" if number else name
                if kind.set_extra_state is not own.set_extra_state:
                    found[place] = weakref.ref(each)
                elif each.get_extra_state() is not None:
                    raise TypeError(
                        f"module {place!r} ({kind.__name__}) has get_extra_state, but no set_extra_state: its extra "
                        "state would be lost"
                    )
        return cls(found) if found else None

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the modules that have one."""
        modules = {name: each() for name, each in self._modules.items()}
        states = {name: each.get_extra_state() for name, each in modules.items() if each is not None}
        return {name: each for name, each in states.items() if each is not None}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Put states back into the modules."""
        for name, state in states.items():
            module = self._modules[name]()
            assert module is not None
            module.set_extra_state(state)


@value
class Left:
    """What the function's code can change besides the advance, as it was last known to be right.

    Attributes:
        objects: the objects.
        versions: of their tensors.
        values: one of each watched parameter, and its shape.
        settings: of the optimizers' groups, such as the learning rate.
        gradients: the identity of each parameter's, or of None, and their versions.
        required: whether each parameter requires one: the function may freeze some, and unfreeze them at a later step.
    """

    objects: Objects
    versions: Versions
    values: Values
    settings: Settings
    gradients: tuple[int, ...]
    required: tuple[bool, ...]

    @classmethod
    def of(cls, objects: Objects, *, is_stepped: bool = False) -> Left:
        """Return it as it is now; the gradients of a step that is done are used up."""
        required = tuple(map(_requires_grad, objects.parameters))
        gradients = () if is_stepped else _gradients(objects)
        return cls(objects, versions(objects), _values(objects), _settings(objects), gradients, required)

    def is_changed(self) -> bool:
        """Return whether anything of it has changed."""
        if self.changed_parameter() or self.are_gradients_changed():
            return True
        return not _same(self.settings, _settings(self.objects))

    def changed_parameter(self) -> str:
        """Return the name of a parameter that has changed, or of an optimizer's state; "" if none has."""
        if self.versions != (now := versions(self.objects)):
            return changed(self.objects, self.versions, now)
        found = zip(self.objects.watched, self.values, _values(self.objects), strict=True)
        return next((self.objects.names[index] for index, then, since in found if then != since), "")

    def are_gradients_changed(self) -> bool:
        """Return whether the gradients are others."""
        return self.gradients != _gradients(self.objects)

    def restore_settings(self) -> None:
        """Undo what has changed the optimizers' groups, such as a scheduler that was made anew."""
        _load_settings(self.objects, self.settings)


def _unfilled(
    models: Iterable[torch.nn.Module],
) -> Iterator[tuple[str, weakref.ref[torch.nn.Module], str, torch.Tensor]]:
    """Return the tensors on the meta device, each at all its places."""
    for number, model in enumerate(models):
        for prefix, module in model.named_modules():
            for name, each in (*module._parameters.items(), *module._buffers.items()):
                if each is not None and each.is_meta:
                    path = ".".join(part for part in (prefix, name) if part)
                    yield f"averages[{number - 1}].{path}" if number else path, weakref.ref(module), name, each


def _refuse(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"resume() takes torch optimizers, not {kind.__name__}")
    if kind.__name__ == "ZeroRedundancyOptimizer" or kind.__module__.startswith(("bitsandbytes", "torchao")):
        raise TypeError(
            f"{kind.__module__}.{kind.__name__} has state outside of its `state`, so that it cannot be kept in memory: "
            "resume from checkpoints with it"
        )


def _refuse_hidden(optimizer: torch.optim.Optimizer, known: set[int]) -> None:
    """Refuse an optimizer with tensors that are neither parameters nor in its `state`, and states of other types.

    A single number is none of them: fused optimizers have a flag for an overflow, which they set at each step.
    """

    def hides(each: Any, depth: int = 3) -> bool:
        if isinstance(each, torch.Tensor):
            return id(each) not in known and each.numel() > 1
        if isinstance(each, torch.optim.Optimizer):
            return each.state is not optimizer.state
        if isinstance(each, Mapping | list | tuple) and depth:
            return any(hides(one, depth - 1) for one in (each.values() if isinstance(each, Mapping) else each))
        return False

    kind = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
    for name, each in vars(optimizer).items():
        if name not in ("state", "param_groups", "defaults") and hides(each):
            raise TypeError(
                f"{kind} has state in its {name!r}, outside of its `state`, so that it cannot "
                "be kept in memory: resume from checkpoints with it"
            )
    for state in optimizer.state.values():
        for name, each in state.items() if isinstance(state, Mapping) else ():
            plain = (torch.Tensor, torch.nn.Parameter, DTensor)
            if isinstance(each, torch.Tensor) and type(each) not in plain:
                raise TypeError(
                    f"{kind} has a state {name!r} of type {type(each).__name__}, which cannot "
                    "be sent to another rank: resume from checkpoints with it"
                )


def _refuse_lazy(named: Mapping[str, torch.Tensor]) -> None:
    for name, each in named.items():
        if is_lazy(each):
            raise ValueError(f"{name!r} has no shape yet, as of a lazy module: call the model once before resume()")


def _refuse_expanded(named: Mapping[str, torch.Tensor]) -> None:
    for name, each in named.items():
        local = _local(each)
        if any(size > 1 and stride == 0 for size, stride in zip(local.shape, local.stride(), strict=True)):
            raise ValueError(
                f"{name!r} is expanded: several of its elements are one in memory, so that no state can be copied into "
                "it, that of a checkpoint neither; register a clone() of it, or persistent=False"
            )


def _gradients(objects: Objects) -> tuple[int, ...]:
    grads = list(map(_grad_of, objects.parameters))
    return (*map(id, grads), *map(_version_of, [each for each in grads if each is not None]))


def _refuse_module(module: torch.nn.Module) -> None:
    if type(module).__name__ == "FullyShardedDataParallel":
        raise TypeError("resume() takes modules of fully_shard; FullyShardedDataParallel has parameters of its own")
    state_of = getattr(module, "_get_fsdp_state", None)
    if state_of is not None and state_of()._is_root is not None:
        raise RuntimeError("resume() after a forward pass of fully_shard, which uses its own parameters from then on")


def shares(old: Objects, new: Objects) -> bool:
    """Return whether new objects have tensors or optimizers of the old ones: a model that outlives the function."""
    kept = {id(each) for each in (*old.parameters, *old.optimizers)}
    return any(id(each) in kept for each in (*new.parameters, *new.optimizers))


@contextmanager
def stepped(new: Objects, old: Objects) -> Iterator[list[torch.optim.Optimizer]]:
    """Return the optimizers of new objects, and not of old ones, that are stepped in the context."""
    found: list[torch.optim.Optimizer] = []
    hooks = [
        each.register_step_pre_hook(lambda optimizer, args, kwargs: found.append(optimizer))
        for each in new.optimizers
        if all(each is not kept for kept in old.optimizers)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def is_scheduled(objects: Objects) -> bool:
    """Return whether a scheduler of torch sets the learning rate of an optimizer."""
    return any(hasattr(each.step, "_wrapped_by_lr_sched") for each in objects.optimizers)


def check_shared(objects: Objects) -> None:
    """Refuse shared objects, and extra states, that cannot be copied, before a fault needs it.

    Raises:
        TypeError: for the first one.
    """
    told = {f"the state of shared object {name!r}": each for name, each in objects.shared.items()}
    if _EXTRA in objects.local:
        told[f"one of {_EXTRA}"] = objects.local[_EXTRA]
    for what, each in told.items():
        try:
            torch.save(each.state_dict(), io.BytesIO())
        except Exception as error:  # boundary: the object of the user
            raise TypeError(f"{what} cannot be saved: {error}") from error


def drop_interrupted(objects: Objects) -> None:
    """Drop what an interrupted step leaves in objects that outlive the function: gradients, and their unscaling."""
    for each in objects.parameters:
        each.grad = None
    for shared in objects.shared.values():
        if isinstance(shared, torch.amp.GradScaler) and shared.is_enabled():
            shared._per_optimizer_states.clear()


def versions(objects: Objects) -> Versions:
    """Return the versions of all tensors that only the advance changes, as autograd counts changes in place."""
    # To look up each parameter's state takes several times as long.
    states = [state for optimizer in objects.optimizers for state in optimizer.state.values()]
    try:
        tensors = itertools.chain.from_iterable(map(dict.values, states))
        return tuple(map(_version_of, itertools.chain(objects.parameters, tensors)))
    except (AttributeError, TypeError):  # there are states that are none, such as numbers
        found = [each for state in states if isinstance(state, dict) for each in state.values()]
        return tuple([each._version for each in (*objects.parameters, *found) if isinstance(each, torch.Tensor)])


def digests(objects: Objects) -> tuple[int, ...]:
    """Return a number for each parameter, equal where all its bits are; on a GPU, they are read once, together.

    Averages have 0: their buffers may be each rank's own. A number has the sums over the rows and over the columns of a
    table of 8 bytes each: nothing is copied or converted. The sums are mixed before they are added up with weights: a
    sign is the uppermost bit of both, which two products would cancel.
    """
    found = []
    with torch.no_grad():
        for name, each in zip(objects.names, objects.parameters, strict=True):
            local = _local(each).detach()
            data = local.contiguous().reshape(-1).view(torch.uint8)[: 0 if name.startswith("averages[") else None]
            if data.storage_offset() % 8:  # a part of another tensor
                data = data.clone()
            whole = len(data) // _ROW * _ROW
            table = data[:whole].view(torch.int64).view(-1, _ROW // 8)
            numbers = torch.cat([table.sum(0), table.sum(1), data[whole:].long()])
            mixed = (numbers ^ (numbers >> 31)) * _WEIGHT
            weights = torch.arange(1, 2 * len(numbers), 2, device=numbers.device) * _WEIGHT
            found.append(((mixed ^ (mixed >> 29)) * weights).sum())
    return tuple(torch.stack(found).tolist())


def _watched(parameters: tuple[torch.Tensor, ...], optimizers: tuple[torch.optim.Optimizer, ...]) -> tuple[int, ...]:
    """Return the indices of a few parameters of each kind: an average that follows the others is of no optimizer."""
    stepped = {id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
    kinds: tuple[list[int], list[int]] = [], []
    for index, each in enumerate(parameters):
        if _local(each).numel() and _local(each).is_floating_point():
            kinds[id(each) in stepped].append(index)
    return tuple(index for kind in kinds for index in kind[:: max(1, len(kind) // _WATCHED)][:_WATCHED])


def _values(objects: Objects) -> Values:
    found, shapes = [], []
    for index in objects.watched:
        local = _local(objects.parameters[index])
        if local.is_meta:
            continue
        place = (local.data_ptr(), local.untyped_storage()._cdata, shape := local.shape)
        known, value = objects.corners.get(index, ((), None))
        if value is None or place != known:
            value = local.detach()[(-1,) * local.dim()]  # takes ten times as long as to read it
            objects.corners[index] = place, value
        found.append(value)
        shapes.append(shape)
    if found and objects.device.type == "cpu":
        return tuple(zip([each.item() for each in found], shapes, strict=True))
    return tuple(zip(torch.stack([each.double() for each in found]).tolist(), shapes, strict=True)) if found else ()


def changed(objects: Objects, before: Versions, now: Versions) -> str:
    """Return the name of the first parameter with another version; where there is none, it is an optimizer's state."""
    found = (name for name, then, since in zip(objects.names, before, now, strict=False) if then != since)
    return next(found, "the state of an optimizer")


def require_gradients(objects: Objects, required: Iterable[bool]) -> str:
    """Let parameters require gradients; return a line about those for which that is new, "" if none is.

    None is frozen: one that a part of a pass freezes is trained by the next part.
    """
    found = []
    for name, each, is_required in zip(objects.names, objects.parameters, required, strict=False):
        if is_required and not each.requires_grad and each.is_leaf:
            each.requires_grad_()
            found.append(name)
    if not found:
        return ""
    others = f" and {len(found) - 1} more" if found[1:] else ""
    return f"requires_grad of {found[0]}{others} is as at the last commit, and not as the function has set it"


def adopt(old: Objects, new: Objects) -> str:
    """Let the new objects use the old tensors; nothing is copied but the buffers, or all with `copies`.

    Returns what `require_gradients` does.
    """
    with torch.no_grad():
        for was, now in zip(old.parameters, new.parameters, strict=True):
            if was is now:
                continue
            if old.copies and not now.is_meta:
                _local(now).detach().copy_(_local(was))
            elif now.is_meta and not _local(was).is_meta:
                _fill(now, _local(was).data)
            elif isinstance(now, DTensor):
                assert isinstance(was, DTensor)
                now._local_tensor = was._local_tensor  # fully_shard takes it over before its next forward pass
            else:
                now.data = was.data
        rebuilt = ((old.rebuilt[name], each) for name, each in new.rebuilt.items() if name in old.rebuilt)
        for was, now in (*zip(old.buffers, new.buffers, strict=True), *rebuilt):
            if now.is_meta and not was.is_meta:
                _fill(now, was.clone())
            elif was is not now:
                now.copy_(was)
    for (was_of, was), (now_of, now) in zip(_optimized(old), _optimized(new), strict=True):
        if was_of is not now_of and was in was_of.state:
            state = was_of.state[was].items()
            now_of.state[now] = {key: _on_mesh(now, _local(each), _Sharding.of(each)) for key, each in state}
    if old is not new:
        _load_settings(new, _settings(old))
        _load_shared(new, _copied(_shared_states(old)))
    return require_gradients(new, [each.requires_grad for each in old.parameters])


def send(objects: Objects, transfers: TransferPort) -> None:
    """Send parameters and optimizer state to a rank, which calls `receive`."""
    states = [
        {key: _Described.of(each, parameter) for key, each in optimizer.state.get(parameter, {}).items()}
        for optimizer, parameter in _optimized(objects)
    ]
    required = [each.requires_grad for each in objects.parameters]
    rebuilt = {name: each.detach().cpu() for name, each in objects.rebuilt.items()}
    transfers.send_object([_settings(objects), _shared_states(objects), states, required, rebuilt])
    for each in _sent(objects):
        transfers.send(each)
    transfers.finish()


def receive(objects: Objects, transfers: TransferPort) -> str:
    """Receive parameters and optimizer state into objects that are not used yet: a fault here loses nothing.

    Returns what `require_gradients` does.
    """
    settings, shared, states, required, rebuilt = transfers.receive_object()
    with torch.no_grad():
        _fill_empty(objects, rebuilt, torch.device("cuda" if dist.get_backend() == "nccl" else "cpu"))
        for each in (*objects.parameters, *objects.buffers):
            transfers.receive(_local(each).detach())
        made = []
        for (optimizer, parameter), state in zip(_optimized(objects), states, strict=True):
            kept = {}
            for key, described in state.items():
                kept[key] = described
                if isinstance(described, _Described):
                    local = torch.empty(described.shape, dtype=described.dtype, device=described.device)
                    transfers.receive(local)
                    kept[key] = _on_mesh(parameter, local, described.sharding)
            if kept:
                made.append((optimizer, parameter, kept))
        transfers.finish()
        for optimizer, parameter, kept in made:
            optimizer.state[parameter] = kept
    _load_settings(objects, settings)
    _load_shared(objects, shared)
    return require_gradients(objects, required)


def _fill_empty(objects: Objects, rebuilt: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Give what is on the meta device a storage, and what is not received as a tensor its values."""
    for each in (*objects.parameters, *objects.buffers):
        if each.is_meta:
            _fill(each, torch.empty_like(_local(each), device=device))
    for name, buffer in objects.rebuilt.items():
        if buffer.is_meta and name in rebuilt:
            _fill(buffer, rebuilt[name].to(device))


@value
class _Sharding:
    """How a tensor is sharded; its mesh is that of its parameter."""

    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Any) -> _Sharding | None:
        """Return it; None for what is no DTensor."""
        return cls(tensor.placements, tensor.shape, tensor.stride()) if isinstance(tensor, DTensor) else None


@value
class _Described:
    """A tensor that follows."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    sharding: _Sharding | None = None

    @classmethod
    def of(cls, state: Any, parameter: torch.Tensor) -> Any:
        """Return the description of a tensor of the parameter's device; what is none, as it is.

        Counters of steps are on the CPU, which the process group of a GPU may not serve.
        """
        if not _is_sent(state, parameter):
            return state
        local = _local(state)
        return cls(tuple(local.shape), local.dtype, local.device.type, _Sharding.of(state))


def _sent(objects: Objects) -> Iterator[torch.Tensor]:
    yield from (_local(each).detach() for each in (*objects.parameters, *objects.buffers))
    for optimizer, parameter in _optimized(objects):
        tensors = _tensors(optimizer, parameter)
        yield from (_local(each).detach() for each in tensors if _is_sent(each, parameter))


def _is_sent(state: Any, parameter: torch.Tensor) -> bool:
    same_device = isinstance(state, torch.Tensor) and _local(state).device.type == _local(parameter).device.type
    return same_device or isinstance(state, DTensor)


def _optimized(objects: Objects) -> Iterator[tuple[torch.optim.Optimizer, torch.Tensor]]:
    for optimizer in objects.optimizers:
        for group in optimizer.param_groups:
            yield from ((optimizer, parameter) for parameter in group["params"])


def _tensors(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    return (each for each in optimizer.state.get(parameter, {}).values() if isinstance(each, torch.Tensor))


def _local(tensor: Any) -> Any:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _fill(tensor: torch.Tensor, local: torch.Tensor) -> None:
    """Give a tensor on the meta device a storage; it is the same object for its module and its optimizer."""
    filled = local
    if isinstance(tensor, DTensor):
        filled = _on_mesh(tensor, local, _Sharding.of(tensor))
    if isinstance(tensor, torch.nn.Parameter):
        filled = torch.nn.Parameter(filled, requires_grad=tensor.requires_grad)
    filled.__dict__.update(tensor.__dict__)  # what marks a parameter, such as for an optimizer
    torch.utils.swap_tensors(tensor, filled)


def _on_mesh(parameter: torch.Tensor, local: Any, sharding: _Sharding | None) -> Any:
    """Return what is sharded as a DTensor on the mesh of the parameter, which is that of this iteration."""
    if sharding is None or not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local, parameter.device_mesh, sharding.placements, run_check=False, shape=sharding.shape, stride=sharding.stride
    )


def _coordinates_of(parameters: Iterable[torch.Tensor]) -> ShardOfRank:
    """Return the coordinate and the size of each mesh dimension that shards any parameter; empty for replicas."""
    found: dict[tuple[object, int], tuple[int, int]] = {}
    for each in parameters:
        if isinstance(each, DTensor):
            mesh, at = each.device_mesh, each.device_mesh.get_coordinate()
            assert at is not None
            for dim, placement in enumerate(each.placements):
                if not placement.is_replicate():  # a strided shard, of fully_shard over tensor parallelism, is no Shard
                    found[mesh.mesh_dim_names or mesh.ndim, dim] = at[dim], mesh.size(dim)
    return tuple(part for parts in found.values() for part in parts)


def _settings(objects: Objects) -> Settings:
    return [
        [{key: each for key, each in group.items() if key != "params"} for group in optimizer.param_groups]
        for optimizer in objects.optimizers
    ]


def _load_settings(objects: Objects, settings: Settings) -> None:
    for optimizer, groups in zip(objects.optimizers, settings, strict=True):
        for group, each in zip(optimizer.param_groups, groups, strict=False):  # one may have been added since
            group.update(each)


def _same(one: Any, other: Any) -> bool:
    """Return whether settings are equal; tensors only if they are the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one is other or (not isinstance(one, torch.Tensor) and bool(one == other))


def _shared_states(objects: Objects) -> dict[str, Any]:
    return {name: each.state_dict() for name, each in objects.shared.items()}


def _load_shared(objects: Objects, states: Mapping[str, Any]) -> None:
    for name, state in states.items():
        objects.shared[name].load_state_dict(state)


def _copied(states: dict[str, Any]) -> dict[str, Any]:
    """Return a copy, as a transfer makes one: what cannot be saved was refused."""
    if not states:
        return states
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    copied: dict[str, Any] = torch.load(file, weights_only=False)
    return copied
