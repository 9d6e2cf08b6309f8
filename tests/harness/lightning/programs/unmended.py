"""Trainings in which a part of the restart is switched off: each part is needed, and `verify` names what differs."""

from __future__ import annotations

from typing import Any

from nvrx_lightning.restart import fit, loops, random_state, running_metrics, workers

from tests.harness.lightning.programs import data, ends, optimization
from tests.harness.lightning.programs.expectation import differs

__all__: list[str] = []


@differs("^sample order$")
def a_loader_that_was_set_up_early() -> Any:
    loops._discard_loader = lambda loop: None  # type: ignore[assignment]
    return optimization.warm_up()


@differs("^order of events$")
def a_decision_to_stop() -> Any:
    fit.RestartableFit._had_stopped = lambda self, resumed: False  # type: ignore[method-assign]
    return ends.should_stop()


@differs("train_loss")
def metrics_of_the_epoch() -> Any:
    running_metrics.RunningMetrics.restore = lambda self, trainer: None  # type: ignore[method-assign]
    return optimization.usual()


@differs("random numbers|output of training_step")
def random_numbers() -> Any:
    random_state.RandomState.restore = lambda self: None  # type: ignore[method-assign]
    return optimization.usual()


@differs("sample order|output of training_step")
def random_numbers_of_workers() -> Any:
    def make_only(self: Any, loader: Any, epoch: int, begin: int, make: Any) -> Any:
        return make()

    workers.WorkerStates.iterate = make_only  # type: ignore[method-assign]
    return data.random_transforms_in_workers()
