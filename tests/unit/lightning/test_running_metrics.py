"""What has been accumulated since the epoch began comes back; what was added since does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torchmetrics
from nvrx_lightning.restart.running_metrics import MetricStates, RunningMetrics, shown_metrics, use_shown_metrics


def trainer_of(module: torch.nn.Module, **results: Any) -> Any:
    connector = SimpleNamespace(
        _first_loop_iter=False, _current_fx="training_step", _callback_metrics={}, _logged_metrics={},
        _progress_bar_metrics={},
    )  # fmt: skip
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(_results=results))
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    parts = {"lightning_module": module, "_logger_connector": connector, "strategy": strategy}
    return SimpleNamespace(fit_loop=loop, validating=False, **parts)


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


def test_lists_of_tensors_are_kept_in_host_memory_and_go_back_to_their_devices():
    module = torch.nn.Module()
    module.metric = torchmetrics.CatMetric()
    moved: list[str] = []

    class OnDevice(torch.Tensor):
        """A tensor that is said to be on another device."""

        def cpu(self, *_: Any, **__: Any) -> Any:
            moved.append("to the host")
            return self.as_subclass(torch.Tensor)

    module.metric.value = [torch.ones(2).as_subclass(OnDevice), torch.zeros(1)]
    kept = MetricStates(module)
    assert moved == ["to the host"]
    module.metric.value.append(torch.ones(1))
    kept.restore(module)
    assert [type(each) for each in module.metric.value] == [torch.Tensor] * 2
    assert {each.device for each in module.metric.value} == {torch.device("cpu")}


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


def test_what_the_trainer_shows_goes_on_where_it_was():
    trainer = trainer_of(torch.nn.Module())
    connector = trainer._logger_connector
    connector._logged_metrics["loss_step"], connector._progress_bar_metrics["v_num"] = torch.tensor(2.0), 3
    kept = RunningMetrics.now(trainer)
    for _ in range(2):
        connector._logged_metrics["loss_step"] = torch.tensor(8.0)
        connector._progress_bar_metrics = {}
        kept.restore(trainer)
        assert connector._logged_metrics == {"loss_step": torch.tensor(2.0)}
        assert connector._progress_bar_metrics == {"v_num": 3}


def test_what_the_trainer_shows_is_kept_in_the_checkpoint_as_numbers():
    trainer = trainer_of(torch.nn.Module())
    connector = trainer._logger_connector
    connector._callback_metrics = {"loss": torch.tensor(2.0), "odd": torch.ones(2)}
    connector._logged_metrics, connector._progress_bar_metrics = {"loss": torch.tensor(4.0)}, {"v_num": 3}
    kept = shown_metrics(trainer)
    assert kept == {
        "callback_metrics": {"loss": 2.0}, "logged_metrics": {"loss": 4.0}, "progress_bar_metrics": {"v_num": 3.0},
    }  # fmt: skip
    other = trainer_of(torch.nn.Module())
    use_shown_metrics(other, kept)
    assert other._logger_connector._callback_metrics == {"loss": torch.tensor(2.0)}
    assert other._logger_connector._logged_metrics == {"loss": torch.tensor(4.0)}
    assert other._logger_connector._progress_bar_metrics == {"v_num": 3.0}


def test_a_metric_whose_computation_a_fault_has_interrupted_is_that_of_its_rank():
    module = torch.nn.Module()
    module.metric = torchmetrics.MeanMetric()
    module.metric.update(1.0)
    kept = MetricStates(module)
    module.metric.sync(lambda value, group: [value, value], distributed_available=lambda: True)
    interrupted = MetricStates(module)
    for states in (kept, interrupted):
        states.restore(module)
        assert module.metric.weight == 1.0
        module.metric.sync(lambda value, group: [value, value], distributed_available=lambda: True)


def test_a_state_at_the_end_of_a_validation_has_the_first_iteration_of_the_training():
    trainer = trainer_of(torch.nn.Module())
    before = RunningMetrics.now(trainer)
    trainer._logger_connector._first_loop_iter = None
    trainer._logger_connector._callback_metrics["val_loss"] = torch.tensor(3.0)
    RunningMetrics.now(trainer).after(before).restore(trainer)
    assert trainer._logger_connector._first_loop_iter is False
    assert trainer._logger_connector._callback_metrics == {"val_loss": torch.tensor(3.0)}


def test_a_metric_that_a_validation_has_logged_begins_anew_after_it():
    module = torch.nn.Module()
    module.logged, module.other = torchmetrics.MeanMetric(), torchmetrics.MeanMetric()
    results = {"val_loss": SimpleNamespace(value=torch.tensor(1.0)), "mean": SimpleNamespace(value=module.logged)}
    trainer = trainer_of(module)
    trainer.validating, trainer.fit_loop.epoch_loop.val_loop = True, SimpleNamespace(_results=results)
    module.logged.update(1.0)
    module.other.update(1.0)
    RunningMetrics.now(trainer).restore(trainer)
    assert (module.logged.update_count, module.other.update_count) == (0, 1)
