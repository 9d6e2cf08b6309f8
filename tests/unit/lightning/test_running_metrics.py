"""What has been accumulated since the epoch began comes back; what was added since does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torchmetrics
from nvrx_lightning.restart.running_metrics import MetricStates, RunningMetrics, callback_metrics, use_callback_metrics


def trainer_of(module: torch.nn.Module, **results: Any) -> Any:
    connector = SimpleNamespace(_first_loop_iter=False, _current_fx="training_step", _callback_metrics={})
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(_results=results))
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    return SimpleNamespace(fit_loop=loop, lightning_module=module, _logger_connector=connector, strategy=strategy)


def test_metrics_go_on_where_they_were():
    for kind, values in ((torchmetrics.MeanMetric, (1.0, 3.0)), (torchmetrics.CatMetric, (1.0, 3.0))):
        module = torch.nn.Module()
        module.metric = kind()
        module.metric.update(values[0])
        kept = MetricStates(module)
        for _ in range(2):
            module.metric.update(values[1])
            changed = module.metric.compute()
            kept.restore(module)
            module.metric.update(values[1])
            assert torch.equal(module.metric.compute(), changed)
            kept.restore(module)


def test_results_and_what_callbacks_see_go_on_where_they_were():
    result = torchmetrics.MeanMetric()
    trainer = trainer_of(torch.nn.Module(), loss=result)
    trainer._logger_connector._callback_metrics["loss"] = torch.tensor(2.0)
    result.update(2.0)
    kept = RunningMetrics.now(trainer)
    result.update(8.0)
    vars(trainer._logger_connector).update(_callback_metrics={}, _current_fx=None, _first_loop_iter=None)
    kept.restore(trainer)
    assert result.compute() == 2.0
    connector = trainer._logger_connector
    assert (connector._first_loop_iter, connector._current_fx) == (False, "training_step")
    assert connector._callback_metrics == {"loss": torch.tensor(2.0)}


def test_what_callbacks_see_is_kept_in_the_checkpoint_as_numbers():
    trainer = trainer_of(torch.nn.Module())
    trainer._logger_connector._callback_metrics = {"loss": torch.tensor(2.0), "odd": torch.ones(2)}
    kept = callback_metrics(trainer)
    assert kept == {"loss": 2.0}
    other = trainer_of(torch.nn.Module())
    use_callback_metrics(other, kept)
    assert other._logger_connector._callback_metrics == {"loss": torch.tensor(2.0)}
