"""Running metrics of an epoch at a checkpoint: what this rank has accumulated since the epoch began.

Lightning's checkpoints lack them, and schedulers, early stopping and checkpoint callbacks depend on them.

`snapshot.py` lists the private names of Lightning that are used here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torchmetrics import Metric

__all__ = ["MetricStates", "RunningMetrics", "metrics_in", "shown_metrics", "use_shown_metrics"]

_OWN: Final = ("_update_count", "_computed", "_forward_cache", "has_reset")
"""Attributes of a metric besides its states; the last one belongs to Lightning's results only."""
_OF_THE_BAR: Final = "_progress_bar_metrics"  # numbers, and no tensors
_SHOWN: Final = ("_callback_metrics", "_logged_metrics", _OF_THE_BAR)
"""The values behind the Trainer's `callback_metrics`, `logged_metrics` and `progress_bar_metrics`."""


@dataclass(frozen=True)
class _OnHost:
    """A list of tensors, which may be long: in host memory, and the device of each."""

    tensors: list[Any]
    devices: list[torch.device | None]

    @classmethod
    def of(cls, values: list[Any]) -> Self:
        """Return a list in host memory."""
        tensors = [each.detach().cpu() if isinstance(each, torch.Tensor) else each for each in values]
        return cls(tensors, [each.device if isinstance(each, torch.Tensor) else None for each in values])

    def back(self) -> list[Any]:
        """Return the list on its devices."""
        kept = zip(self.tensors, self.devices, strict=True)
        return [each if device is None else each.to(device) for each, device in kept]


def _copied(value: Any) -> Any:
    """Copy a state: a tensor, which may be changed in place, or a list, to which tensors are appended."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value


def _state(metric: Metric) -> dict[str, Any]:
    """Return the state of a metric on this rank, also while `compute` has replaced it by that of all ranks."""
    own = {**vars(metric), **((metric._is_synced and metric._cache) or {})}
    copied = {name: own[name] for name in (*metric._defaults, *_OWN) if name in own}
    return {name: _OnHost.of(each) if isinstance(each, list) else _copied(each) for name, each in copied.items()}


def _set_state(metric: Metric, state: dict[str, Any]) -> None:
    """Set the state of a metric, also of one whose `compute` a fault has interrupted."""
    own = {name: each.back() if isinstance(each, _OnHost) else _copied(each) for name, each in state.items()}
    vars(metric).update(own, _is_synced=False, _cache=None)


class MetricStates:
    """The states of the torchmetrics in a model; `state_dict` leaves them out.

    Args:
        module: the model.
        validated: the metrics that the current validation has logged. Lightning resets them after its last hook, by its
            results, which a restart drops.
    """

    def __init__(self, module: torch.nn.Module, validated: Collection[Metric] = ()) -> None:
        self._take(metrics_in(module), validated)

    @classmethod
    def of(cls, metrics: Mapping[str, Metric]) -> Self:
        """Return the states of these metrics of a model."""
        made = object.__new__(cls)
        made._take(metrics, ())
        return made

    def _take(self, metrics: Mapping[str, Metric], validated: Collection[Metric]) -> None:
        reset = {id(each) for each in validated}
        self._states = {name: _state(each) for name, each in metrics.items() if id(each) not in reset}
        self._reset = {name for name, each in metrics.items() if id(each) in reset}

    def restore(self, module: torch.nn.Module) -> None:
        """Restore them."""
        for name, each in module.named_modules():
            if isinstance(each, Metric) and name in self._states:
                _set_state(each, self._states[name])
            elif isinstance(each, Metric) and name in self._reset:
                each.reset()


class RunningMetrics:
    """The values logged since the epoch began, and the values that the Trainer shows of them."""

    def __init__(self, results: dict[str, tuple[Metric, dict[str, Any]]], metrics: MetricStates) -> None:
        self._results, self._metrics = results, metrics
        self._connector: dict[str, Any] = {}

    @classmethod
    def now(cls, trainer: Any, metrics: MetricStates | None = None) -> Self:
        """Return the current values.

        Args:
            trainer: the Trainer.
            metrics: the states of the metrics in the model, if they are known.
        """
        results = trainer.fit_loop.epoch_loop._results
        metrics = metrics or MetricStates(trainer.lightning_module, _validated(trainer))
        made = cls({key: (each, _state(each)) for key, each in results.items()}, metrics)
        connector = trainer._logger_connector
        made._connector = {
            "_first_loop_iter": connector._first_loop_iter,
            "_current_fx": connector._current_fx,
            **{name: dict(vars(connector)[name]) for name in _SHOWN},
        }
        return made

    def shown(self) -> dict[str, dict[str, float]]:
        """Return the values that the Trainer shows, as `shown_metrics` does."""
        return {name.removeprefix("_"): _numbers(self._connector[name]) for name in _SHOWN}

    def after(self, before: Self) -> Self:
        """Return the values at the end of a validation: Lightning then goes on with the training's first iteration.

        Args:
            before: the values at the start of the validation.
        """
        made = type(self)(self._results, self._metrics)
        made._connector = {**self._connector, "_first_loop_iter": before._connector["_first_loop_iter"]}
        return made

    def restore(self, trainer: Any) -> None:
        """Restore them."""
        results = trainer.fit_loop.epoch_loop._results
        for key, (metric, state) in self._results.items():
            results[key] = metric
            _set_state(metric, state)
        self._metrics.restore(trainer.lightning_module)
        shown = {name: dict(self._connector[name]) for name in _SHOWN}
        vars(trainer._logger_connector).update({**self._connector, **shown})


def metrics_in(module: torch.nn.Module) -> dict[str, Metric]:
    """Return the torchmetrics in a model, by name."""
    return {name: each for name, each in module.named_modules() if isinstance(each, Metric)}


def _validated(trainer: Any) -> list[Metric]:
    """Return the metrics of the user's that the current validation has logged."""
    if not trainer.validating:
        return []
    logged = (each.value for each in trainer.fit_loop.epoch_loop.val_loop._results.values())
    return [each for each in logged if isinstance(each, Metric)]


def shown_metrics(trainer: Any) -> dict[str, dict[str, float]]:
    """Return the metrics that the Trainer shows, to save them: other ranks may resume from them."""
    connector = vars(trainer._logger_connector)
    return {name.removeprefix("_"): _numbers(connector[name]) for name in _SHOWN}


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if getattr(value, "numel", lambda: 1)() == 1}


def use_shown_metrics(trainer: Any, saved: dict[str, Any]) -> None:
    """Make the metrics of a checkpoint visible to schedulers, callbacks and the user."""
    device, connector = trainer.strategy.root_device, vars(trainer._logger_connector)
    for name in _SHOWN:
        for key, value in saved.get(name.removeprefix("_"), {}).items():
            connector[name][key] = value if name == _OF_THE_BAR else torch.tensor(value, device=device)
