"""The tensors of a training: how new objects take over old ones, and how another rank gets them.

`DTensor._local_tensor`, `DTensor.from_local` and `Tensor._version` are torch's; a test says when they move.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from nvrx_core.inprocess.live.memory import Shard as ShardOfRank
from nvrx_core.inprocess.live.row import Stateful
from nvrx_core.values import value

__all__ = ["Objects", "adopt", "changed", "receive", "send", "versions"]

Versions = tuple[int, ...]


@value
class Objects:
    """What the function has registered in an iteration.

    It refers to no module: those of FSDP2 are in cycles with their process groups.

    Attributes:
        names, parameters: of all tensors that only the advance changes, besides the optimizers' states.
        buffers: the persistent buffers of the model, which change anywhere.
        optimizers: of the parameters.
        advance: does a step without any other rank.
        shared: objects that only the advance changes, by name.
        local: objects that change anywhere, by name.
        shard: which part of the parameters this rank has.
        device: of the parameters.
    """

    names: tuple[str, ...]
    parameters: tuple[torch.Tensor, ...]
    buffers: tuple[torch.Tensor, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    advance: Callable[[], object]
    shared: Mapping[str, Stateful]
    local: Mapping[str, Stateful]
    shard: ShardOfRank
    device: torch.device

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
        optimizers = tuple(optimizers)
        for each in optimizers:
            _refuse(each)
        named: dict[str, torch.Tensor] = dict(model.named_parameters())
        for number, module in enumerate(averages):
            tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            named |= {f"averages[{number}].{name}": tensor for name, tensor in tensors.items()}
        if not named:
            raise ValueError("resume() was given a model without parameters")
        persistent = model.state_dict(keep_vars=True)
        buffers = tuple(each for name, each in model.named_buffers() if name in persistent)
        parameters = tuple(named.values())
        return cls(
            tuple(named), parameters, buffers, optimizers, advance, shared, local, _shard_of(parameters),
            parameters[0].device,
        )  # fmt: skip


def _refuse(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"resume() takes torch optimizers, not {kind.__name__}")
    if kind.__name__ == "ZeroRedundancyOptimizer" or kind.__module__.startswith("bitsandbytes"):
        raise TypeError(
            f"{kind.__module__}.{kind.__name__} has state outside of its `state`, so that it cannot be kept in memory: "
            "resume from checkpoints with it"
        )


def versions(objects: Objects) -> Versions:
    """Return the versions of all tensors that only the advance changes, as autograd counts changes in place."""
    states = (each for optimizer, parameter in _optimized(objects) for each in _tensors(optimizer, parameter))
    return tuple(each._version for each in (*objects.parameters, *states))


def changed(objects: Objects, before: Versions, now: Versions) -> str:
    """Return the name of the first parameter with another version; where there is none, it is an optimizer's state."""
    found = (name for name, then, since in zip(objects.names, before, now, strict=False) if then != since)
    return next(found, "the state of an optimizer")


def adopt(old: Objects, new: Objects) -> None:
    """Let the new objects use the old tensors; nothing is copied but the buffers."""
    with torch.no_grad():
        for was, now in zip(old.parameters, new.parameters, strict=True):
            if was is now:
                continue
            if isinstance(now, DTensor):
                assert isinstance(was, DTensor)
                now._local_tensor = was._local_tensor  # fully_shard takes it over before its next forward pass
            else:
                now.data = was.data
        for was, now in zip(old.buffers, new.buffers, strict=True):
            if was is not now:
                now.copy_(was)
    for (was_of, was), (now_of, now) in zip(_optimized(old), _optimized(new), strict=True):
        if was_of is not now_of and was in was_of.state:
            state = was_of.state[was].items()
            now_of.state[now] = {key: _as_state_of(now, each) for key, each in state}
    if old is not new:
        _load_plain(new, _plain(old))


def send(objects: Objects, to: int) -> None:
    """Send parameters and optimizer state to a rank, which calls `receive`."""
    states = [
        {key: _Described.of(each) for key, each in optimizer.state.get(parameter, {}).items()}
        for optimizer, parameter in _optimized(objects)
    ]
    dist.send_object_list([_plain(objects), states], to)
    for each in _sent(objects):
        dist.send(each.contiguous(), to)


def receive(objects: Objects, source: int) -> None:
    """Receive parameters and optimizer state into objects that are not used yet: a fault here loses nothing."""
    got: list[Any] = [None, None]
    dist.recv_object_list(got, source)
    plain, states = got
    with torch.no_grad():
        for each in (*objects.parameters, *objects.buffers):
            local = _local(each).detach()
            received = local.contiguous()  # mostly `local` itself
            dist.recv(received, source)
            if received is not local:
                local.copy_(received)
        for (optimizer, parameter), state in zip(_optimized(objects), states, strict=True):
            made = {}
            for key, described in state.items():
                kept = described
                if isinstance(described, _Described):
                    kept = torch.empty(described.shape, dtype=described.dtype, device=described.device)
                    dist.recv(kept, source)
                made[key] = _as_state_of(parameter, kept)
            if made:
                optimizer.state[parameter] = made
    _load_plain(objects, plain)


@value
class _Described:
    """A tensor that follows."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, state: Any) -> Any:
        """Return the description of a tensor; what is none, as it is."""
        if not isinstance(state, torch.Tensor):
            return state
        local = _local(state)
        return cls(tuple(local.shape), local.dtype, local.device.type)


def _sent(objects: Objects) -> Iterator[torch.Tensor]:
    yield from (_local(each).detach() for each in (*objects.parameters, *objects.buffers))
    for optimizer, parameter in _optimized(objects):
        yield from (_local(each).detach() for each in _tensors(optimizer, parameter))


def _optimized(objects: Objects) -> Iterator[tuple[torch.optim.Optimizer, torch.Tensor]]:
    for optimizer in objects.optimizers:
        for group in optimizer.param_groups:
            yield from ((optimizer, parameter) for parameter in group["params"])


def _tensors(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    return (each for each in optimizer.state.get(parameter, {}).values() if isinstance(each, torch.Tensor))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _as_state_of(parameter: torch.Tensor, state: Any) -> Any:
    """Return a state of an optimizer as one of this parameter: on its mesh, if it is sharded as it is."""
    if not isinstance(state, torch.Tensor):
        return state
    local = _local(state)
    if isinstance(parameter, DTensor) and local.dim() and local.shape == parameter._local_tensor.shape:
        return DTensor.from_local(
            local, parameter.device_mesh, parameter.placements, run_check=False,
            shape=parameter.shape, stride=parameter.stride(),
        )  # fmt: skip
    return local


def _shard_of(parameters: Iterable[torch.Tensor]) -> ShardOfRank:
    """Return the coordinate and the size of each sharded dimension of the mesh; empty for replicas."""
    for each in parameters:
        if isinstance(each, DTensor):
            at = each.device_mesh.get_coordinate()
            assert at is not None
            sharded = (dim for dim, placement in enumerate(each.placements) if isinstance(placement, Shard))
            return tuple(part for dim in sharded for part in (at[dim], each.device_mesh.size(dim)))
    return ()


def _plain(objects: Objects) -> tuple[list[list[dict[str, Any]]], bytes]:
    """Return what is no tensor of a parameter: the settings of the optimizers' groups, and the shared objects."""
    groups = [
        [{key: each for key, each in group.items() if key != "params"} for group in optimizer.param_groups]
        for optimizer in objects.optimizers
    ]
    file = io.BytesIO()
    torch.save({name: each.state_dict() for name, each in objects.shared.items()}, file)
    return groups, file.getvalue()


def _load_plain(objects: Objects, plain: tuple[list[list[dict[str, Any]]], bytes]) -> None:
    for optimizer, groups in zip(objects.optimizers, plain[0], strict=True):
        for group, settings in zip(optimizer.param_groups, groups, strict=True):
            group.update(settings)
    for name, state in torch.load(io.BytesIO(plain[1]), weights_only=False).items():
        objects.shared[name].load_state_dict(state)
