"""Running metrics of an epoch at a checkpoint: what this rank has accumulated since the epoch began.

Lightning's checkpoints lack them, and schedulers, early stopping and checkpoint callbacks depend on them.

`snapshot.py` lists the private names of Lightning that are used here.
"""

from __future__ import annotations

from typing import Any, Final, Self

import torch
from torchmetrics import Metric

__all__ = ["MetricStates", "RunningMetrics", "callback_metrics", "use_callback_metrics"]

_OWN: Final = ("_update_count", "_computed", "_forward_cache", "has_reset")
"""Attributes of a metric besides its states; the last one belongs to Lightning's results only."""


def _copied(value: Any) -> Any:
    """Copy a state: a tensor, which may be changed in place, or a list, to which tensors are appended."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return list(value) if isinstance(value, list) else value


def _state(metric: Metric) -> dict[str, Any]:
    return {name: _copied(vars(metric)[name]) for name in (*metric._defaults, *_OWN) if name in vars(metric)}


def _set_state(metric: Metric, state: dict[str, Any]) -> None:
    vars(metric).update({name: _copied(value) for name, value in state.items()})


class MetricStates:
    """The states of the torchmetrics in a model; `state_dict` leaves them out."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._states = {name: _state(each) for name, each in module.named_modules() if isinstance(each, Metric)}

    def restore(self, module: torch.nn.Module) -> None:
        """Restore them."""
        for name, each in module.named_modules():
            if isinstance(each, Metric) and name in self._states:
                _set_state(each, self._states[name])


class RunningMetrics:
    """The values logged since the epoch began, and the values that callbacks see."""

    def __init__(self, results: dict[str, tuple[Metric, dict[str, Any]]], metrics: MetricStates) -> None:
        self._results, self._metrics = results, metrics
        self._connector: dict[str, Any] = {}

    @classmethod
    def now(cls, trainer: Any) -> Self:
        """Return the current values."""
        results = trainer.fit_loop.epoch_loop._results
        made = cls({key: (each, _state(each)) for key, each in results.items()}, MetricStates(trainer.lightning_module))
        connector = trainer._logger_connector
        made._connector = {
            "_first_loop_iter": connector._first_loop_iter,
            "_current_fx": connector._current_fx,
            "_callback_metrics": dict(connector._callback_metrics),
        }
        return made

    def restore(self, trainer: Any) -> None:
        """Restore them."""
        results = trainer.fit_loop.epoch_loop._results
        for key, (metric, state) in self._results.items():
            results[key] = metric
            _set_state(metric, state)
        self._metrics.restore(trainer.lightning_module)
        callback_metrics = {**self._connector["_callback_metrics"]}
        vars(trainer._logger_connector).update({**self._connector, "_callback_metrics": callback_metrics})


def callback_metrics(trainer: Any) -> dict[str, float]:
    """Return the metrics that schedulers and callbacks see, to save them: other ranks may resume from them."""
    known = trainer._logger_connector._callback_metrics
    return {name: float(value) for name, value in known.items() if value.numel() == 1}


def use_callback_metrics(trainer: Any, metrics: dict[str, float]) -> None:
    """Make the metrics of a checkpoint visible to schedulers and callbacks."""
    device = trainer.strategy.root_device
    known = {name: torch.tensor(value, device=device) for name, value in metrics.items()}
    trainer._logger_connector._callback_metrics.update(known)
