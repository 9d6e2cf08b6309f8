"""The strategies that restart a fit inside its processes.

Each is a real subclass of Lightning's strategy, with `InProcessStrategy` in front: Lightning chooses precision plugins
and samplers by `isinstance`. The classes exist once for each family (`families.py`).
"""

from __future__ import annotations

import copy
import difflib
import functools
import importlib
import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, TypeVar, overload

from nvrx_core.errors import RestartAbort
from nvrx_core.inprocess import last_restart
from nvrx_core.inprocess.call.user_errors import plainly
from nvrx_core.inprocess.protocol.outcome import given_up
from nvrx_lightning.environment import follow_assignment
from nvrx_lightning.families import FAMILIES, family_of, lookup
from nvrx_lightning.options import InProcessOptions, refuse_unknown
from nvrx_lightning.restart.checkpoint import atomic_writes
from nvrx_lightning.restart.fit import CHECKPOINT_KEY, RestartableFit
from nvrx_lightning.restart.launcher import wrap_launcher
from nvrx_lightning.restart.memory import IN_MEMORY
from nvrx_lightning.restart.tuners import is_of_search
from nvrx_lightning.subclassing import become, tell_parameters

__all__ = ["STRATEGIES", "InProcessStrategy", "in_process", "strategy_class"]

Strategy = TypeVar("Strategy")

_WRAPPED_IN = {
    "DDPStrategy": "torch.nn.parallel.DistributedDataParallel",
    "FSDPStrategy": "torch.distributed.fsdp.FullyShardedDataParallel",
}
"""Where Lightning's strategies pass the options that they do not know."""
_BANNERS = ("distributed", "rank_zero")
"""The modules of Lightning whose loggers announce the ranks that start."""
STRATEGIES = {
    "InProcessDDPStrategy": "DDPStrategy",
    "InProcessFSDPStrategy": "FSDPStrategy",
    "InProcessModelParallelStrategy": "ModelParallelStrategy",
}
"""The names of the classes, and of the Lightning class that each derives from."""


class InProcessStrategy:
    """Mixin for a strategy with one process per device: restarts its fits in their processes after faults.

    Args:
        args, kwargs: the arguments of the base class, and the options: the fields of `InProcessOptions`.

    Raises:
        ValueError, TypeError: for an option that violates its rule.
    """

    in_process_options: InProcessOptions
    in_process_defaults: Mapping[str, Any] = MappingProxyType({})
    _nvrx_mesh: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = {name: kwargs.pop(name) for name in InProcessOptions.names() if name in kwargs}
        _refuse_unknown(type(self), kwargs)
        self.in_process_options = InProcessOptions(**{**self.in_process_defaults, **given})
        super().__init__(*args, **kwargs)

    @property
    def _nvrx_fit(self: Any) -> RestartableFit | None:
        return getattr(self._launcher, "fit", None)

    def _configure_launcher(self: Any) -> None:
        follow_assignment(self.cluster_environment)
        super()._configure_launcher()  # type: ignore[misc]
        wrap_launcher(self, family_of(type(self)))

    def setup_environment(self: Any) -> None:
        """Create the process group of the attempt."""
        if self._nvrx_fit is not None:
            become(self.checkpoint_io, atomic_writes)
            self._fit_mesh()
        with _without_banner(family_of(type(self)), attempt=self._nvrx_fit.attempt if self._nvrx_fit else 0):
            super().setup_environment()  # type: ignore[misc]
        if self._nvrx_fit is not None:
            self._nvrx_fit.group_made(self)

    def setup(self: Any, trainer: Any) -> None:
        """Set up model and optimizers, with parameters that stay as they are if the attempt goes on from memory."""
        fit = self._nvrx_fit
        with _without_sync(self) if fit is not None and fit.memory.choice is not None else nullcontext():
            super().setup(trainer)  # type: ignore[misc]
        if fit is not None:
            fit.set_up()

    def optimizer_step(self: Any, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        """Step, after a vote of all ranks."""
        fit = self._nvrx_fit
        with nullcontext() if fit is None else fit.committing(self, optimizer):
            return super().optimizer_step(optimizer, closure, model, **kwargs)  # type: ignore[misc]

    def nvrx_batch_ended(self: Any, *, validates: bool = False) -> None:
        """Keep the state of the Trainer in memory."""
        if self._nvrx_fit is not None:
            self._nvrx_fit.batch_ended(self, validates=validates)

    def _fit_mesh(self: Any) -> None:
        """Fit the device mesh of a sharding strategy to the remaining ranks."""
        if hasattr(self, "_tensor_parallel_size"):
            self._fit_parallel_sizes()
        elif isinstance(mesh := getattr(self, "kwargs", {}).get("device_mesh"), tuple) or self._nvrx_mesh is not None:
            self._nvrx_mesh = self._nvrx_mesh or mesh  # FSDP1 replaces the sizes by a mesh of its groups
            self.kwargs["device_mesh"] = self._nvrx_mesh

    def _fit_parallel_sizes(self: Any) -> None:
        if self._nvrx_mesh is None:
            self._nvrx_mesh = self._data_parallel_size, self._tensor_parallel_size
        data, tensor = self._nvrx_mesh
        if self.world_size < self.num_nodes * self.num_processes:
            tensor = self.num_processes if tensor == "auto" else tensor
            data = self.world_size // tensor
            if data * tensor != self.world_size:
                few = RestartAbort(
                    f"{self.world_size} ranks are left, which tensor_parallel_size={tensor} does not divide",
                    advice="let rank_assignment drop ranks by groups of this size, or keep reserves",
                )
                restart = last_restart()
                raise given_up(few, restart.exit if restart is not None else None)
        self._data_parallel_size, self._tensor_parallel_size = data, tensor

    @property
    def distributed_sampler_kwargs(self: Any) -> dict[str, Any]:
        """The number of replicas: the remaining ranks, not the ranks that were started."""
        if hasattr(self, "device_mesh"):
            return super().distributed_sampler_kwargs  # type: ignore[misc, no-any-return]
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def _nvrx_replica(self) -> tuple[int, int]:
        kwargs = self.distributed_sampler_kwargs
        return kwargs["num_replicas"], kwargs["rank"]

    def process_dataloader(self: Any, dataloader: object) -> object:
        """Resume the training data where the checkpoint was saved."""
        dataloader = super().process_dataloader(dataloader)  # type: ignore[misc]
        fit, trainer = self._nvrx_fit, self.lightning_module.trainer
        if fit is not None and trainer.state.stage == "train":
            fit.train_loader_made(dataloader, *self._nvrx_replica())
            fit.workers_made(dataloader, *self._nvrx_replica())
        return dataloader

    def save_checkpoint(self: Any, checkpoint: dict[str, Any], filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save a checkpoint with the position in the data."""
        fit = self._nvrx_fit
        if fit is None:
            super().save_checkpoint(checkpoint, filepath, *args, **kwargs)  # type: ignore[misc]
            return
        can_resume = "optimizer_states" in checkpoint and not is_of_search(filepath)
        if is_of_search(filepath):
            fit.memory.searching(True)
        step = checkpoint.get("global_step", 0)
        fit.saving(checkpoint, *self._nvrx_replica())
        fit.saved.writing(filepath, step)
        if can_resume:
            fit.saved.saving(filepath, step, checkpoint[CHECKPOINT_KEY]["token"])
        super().save_checkpoint(checkpoint, filepath, *args, **kwargs)  # type: ignore[misc]
        if can_resume:
            fit.saved.saved(filepath, step)
            fit.memory.saved()

    def remove_checkpoint(self: Any, filepath: Any) -> None:
        """Remove a checkpoint."""
        super().remove_checkpoint(filepath)  # type: ignore[misc]
        if self._nvrx_fit is not None:
            self._nvrx_fit.saved.removed(filepath)
            if is_of_search(filepath):
                self._nvrx_fit.memory.searching(False)

    def load_checkpoint(self: Any, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load a checkpoint and its position in the data; one that fails to load is not tried again."""
        fit = self._nvrx_fit
        if fit is not None and checkpoint_path == IN_MEMORY:
            kept: dict[str, Any] = fit.memory.checkpoint()
            fit.loaded(kept, self._nvrx_replica()[0])
            if not self.lightning_restore_optimizer:
                fit.take_over()
            return kept
        try:
            checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)  # type: ignore[misc]
        except Exception as error:  # boundary: any CheckpointIO
            if fit is not None:
                fit.saved.failed_to_load(checkpoint_path, error)
            raise
        if fit is not None:
            fit.loaded(checkpoint, self._nvrx_replica()[0])
        return checkpoint

    def load_model_state_dict(self: Any, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
        """Load the weights, unless they are in memory."""
        if self._nvrx_fit is None or self._nvrx_fit.memory.resumed is None:
            super().load_model_state_dict(checkpoint, *args, **kwargs)  # type: ignore[misc]

    def load_optimizer_state_dict(self: Any, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
        """Load the state of the optimizers, or take it over with the weights from memory."""
        fit = self._nvrx_fit
        if fit is None or fit.memory.resumed is None:
            super().load_optimizer_state_dict(checkpoint, *args, **kwargs)  # type: ignore[misc]
        elif self.lightning_restore_optimizer:
            fit.take_over()

    def on_train_start(self) -> None:
        """Restore the random state, and log the restart."""
        super().on_train_start()  # type: ignore[misc]
        if self._nvrx_fit is not None:
            self._nvrx_fit.train_started()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Report progress."""
        super().on_train_batch_start(batch, batch_idx)  # type: ignore[misc]
        if self._nvrx_fit is not None:
            self._nvrx_fit.batch_started(batch)


@contextmanager
def _without_sync(strategy: Any) -> Iterator[None]:
    """Let DistributedDataParallel leave the parameters as they are: rank 0 may be the one that lacks them."""
    options = getattr(strategy, "_ddp_kwargs", None)
    if options is not None:
        strategy._ddp_kwargs = {**options, "init_sync": False}
    try:
        yield
    finally:
        if options is not None:
            strategy._ddp_kwargs = options


@contextmanager
def _without_banner(family: str, *, attempt: int) -> Iterator[None]:
    """Leave out Lightning's lines about the ranks that start, in an attempt that starts none."""
    names = [f"{package}.utilities.{name}" for package in (FAMILIES[family], family) for name in _BANNERS]
    loggers = [logging.getLogger(name) for name in names] if attempt else []
    try:
        for each in loggers:
            each.addFilter(_is_no_banner)
        yield
    finally:
        for each in loggers:
            each.removeFilter(_is_no_banner)


def _is_no_banner(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO


def _refuse_unknown(kind: type, arguments: Mapping[str, object]) -> None:
    """Refuse an option that is none: Lightning passes what it does not know to DDP or FSDP, in each attempt.

    A class of the user's between this one and Lightning's may take more: there, only a misspelt option is refused.

    Raises:
        TypeError: with the name that is most like it.
    """
    if not arguments:
        return
    base: Any = kind.__mro__[kind.__mro__.index(InProcessStrategy) + 1]
    parameters = inspect.signature(base.__init__).parameters
    is_lightnings = base.__module__.startswith(tuple(f"{family}." for family in FAMILIES))
    if not is_lightnings and any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        alike = {name: difflib.get_close_matches(name, InProcessOptions.names(), 1, 0.8) for name in arguments}
        refuse_unknown(kind.__name__, InProcessOptions.names(), [name for name, close in alike.items() if close])
        return
    module, _, name = _WRAPPED_IN.get(base.__name__, "").rpartition(".")
    further = inspect.signature(getattr(importlib.import_module(module), name)).parameters if module else {}
    known = [name for name in (*parameters, *further) if name not in {"self", "kwargs", "module"}]
    refuse_unknown(kind.__name__, [*InProcessOptions.names(), *known], arguments)


@overload
def in_process(strategy: type, **options: Any) -> Any: ...


@overload
def in_process(strategy: Strategy, **options: Any) -> Strategy: ...


@plainly
def in_process(strategy: Any, **options: Any) -> Any:
    """Add in-process restart to any strategy that has one process per device.

    Args:
        strategy: an instance, or a class, of Lightning's `ParallelStrategy`.
        options: the fields of `InProcessOptions`.

    Returns:
        For a class, a subclass whose constructor also takes the options, with these as the defaults; for an instance, a
        copy of it whose class is that subclass.

    Raises:
        TypeError: if it is not such a strategy, or for an unknown option.
        ValueError: for an option that violates its rule.
    """
    refuse_unknown("in_process", InProcessOptions.names(), options)
    kind = strategy if isinstance(strategy, type) else type(strategy)
    family = family_of(kind)
    if not issubclass(kind, lookup(family, "strategies.ParallelStrategy")):
        raise TypeError(
            f"in_process() needs a ParallelStrategy, with one process for each device, not {kind.__qualname__}"
        )
    if isinstance(strategy, type):
        InProcessOptions(**options)
        made = _subclass(kind)
        return type(made.__name__, (made,), {"in_process_defaults": options}) if options else made
    copied = object.__new__(_subclass(kind))
    vars(copied).update(vars(copy.copy(strategy)))
    copied.in_process_options = InProcessOptions(**options)
    return copied


@functools.cache
def _subclass(kind: Any) -> Any:
    if issubclass(kind, InProcessStrategy):
        return kind
    made = type(f"InProcess{kind.__name__}", (InProcessStrategy, kind), {"__module__": __name__})
    return tell_parameters(made, kind, InProcessOptions)


@functools.cache
def strategy_class(name: str, family: str) -> type[Any]:
    """Return one of `STRATEGIES` for a family."""
    base = lookup(family, f"strategies.{STRATEGIES[name]}")
    made = type(name, (InProcessStrategy, base), {"__module__": __name__, "__doc__": InProcessStrategy.__doc__})
    return tell_parameters(made, base, InProcessOptions)
