"""Metrics, loggers, callbacks, and attributes of module and callbacks."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import nvrx_lightning
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torchmetrics import CatMetric, MeanAbsoluteError, MeanMetric, MeanSquaredError, Metric, MetricCollection

from tests.harness.lightning.programs.base import Net, checkpoint, plain
from tests.harness.lightning.programs.expectation import differs, same
from tests.harness.lightning.programs.optimization import Cosine

__all__: list[str] = []


@same
def csv_logger() -> Any:
    """a `CSVLogger` and `LearningRateMonitor`"""
    return plain(Cosine(), callbacks.LearningRateMonitor(), logger=CSVLogger("logs"), log_every_n_steps=2)


@same
def tensorboard() -> Any:
    """a `TensorBoardLogger` (its rows are not compared)"""
    return plain(logger=TensorBoardLogger("logs"))


class Metrics(Net):
    def __init__(self) -> None:
        super().__init__()
        self.error, self.mean = MeanSquaredError(), MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        predicted = self.net(batch[0])
        self.error(predicted, batch[1])
        self.mean.update(predicted.mean())
        self.log("error", self.error, on_step=True, on_epoch=True)
        return torch.nn.functional.mse_loss(predicted, batch[1])

    def on_train_epoch_end(self) -> None:
        self.log("mean", self.mean.compute())
        self.mean.reset()


@same
def torchmetrics() -> Any:
    """torchmetrics, logged and computed at the end of an epoch"""
    return plain(Metrics())


class KeepsOutputs(Net):
    """Keeps the losses of an epoch in a list, as Lightning's guide to version 2 shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("epoch_loss", torch.stack(self.losses).mean(), sync_dist=True)
        self.losses.clear()


@differs(r"^module\.losses$", warned=r"^module\.losses has \d+ items and had \d+: .* Use self.log")
def a_list_on_the_module() -> Any:
    """a list of outputs on the module"""
    return plain(KeepsOutputs())


class SavesOutputs(KeepsOutputs):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["losses"] = list(self.losses)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.losses = checkpoint["losses"]

    def on_train_start(self) -> None:
        if self.trainer.global_step == 0:
            self.losses = []


@differs("epoch_loss$")
def a_saved_list() -> Any:
    """a list of outputs that `on_save_checkpoint` saves: each rank gets that of rank 0"""
    return plain(SavesOutputs())


class Counts(Net):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.recent = 0, deque[float](maxlen=4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen += 1
        self.steps += 1
        return super().training_step(batch, batch_idx)


@differs(r"^module\.seen$")
def a_counter_on_the_module() -> Any:
    """a number on the module that each step increases"""
    return plain(Counts())


class Journal(Callback):
    """Keeps rows, and does not save them."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.rows.append(trainer.global_step)


@differs(r"^Journal\.rows$", warned=r"^Journal\.rows has \d+ items and had \d+")
def a_list_on_a_callback() -> Any:
    """a list on a callback without `state_dict`"""
    return plain(None, Journal())


class Restarts(Journal):
    """Saves its rows."""

    def state_dict(self) -> dict[str, Any]:
        return {"rows": list(self.rows)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = list(state_dict["rows"])


@same
def a_callback_with_state() -> Any:
    """a callback with `state_dict` and `load_state_dict`"""
    return plain(None, Restarts())


@same
def with_the_callback() -> Any:
    """`FaultToleranceCallback`"""
    return plain(None, nvrx_lightning.FaultToleranceCallback())


@same
def progress_and_profiler() -> Any:
    """a progress bar, a model summary and a profiler"""
    return plain(enable_progress_bar=True, enable_model_summary=True, profiler="simple")


@same
def time_limit() -> Any:
    """`max_time`, which is not reached"""
    return plain(max_time={"minutes": 30})


class Outliers(Metric):
    """A metric of the user's."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("count", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("values", [], dist_reduce_fx="cat")

    def update(self, predicted: torch.Tensor) -> None:
        self.count += (predicted.abs() > 1).sum()
        self.values.append(predicted.detach().flatten())

    def compute(self) -> torch.Tensor:
        values = torch.cat(self.values) if isinstance(self.values, list) else self.values
        return self.count + values.std()


class ListMetrics(Net):
    def __init__(self) -> None:
        super().__init__()
        self.outliers, self.all = Outliers(), CatMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        predicted = self.net(batch[0])
        self.outliers(predicted)
        self.all.update(predicted)
        self.log("outliers", self.outliers, on_step=False, on_epoch=True)
        return torch.nn.functional.mse_loss(predicted, batch[1])

    def on_train_epoch_end(self) -> None:
        self.log("median", self.all.compute().median())
        self.all.reset()


@same
def metrics_with_lists() -> Any:
    """metrics with lists as state, one of them of the user's"""
    return plain(ListMetrics())


class ValidationMetrics(Net):
    def __init__(self) -> None:
        super().__init__()
        self.metrics = MetricCollection({"mse": MeanSquaredError(), "mae": MeanAbsoluteError()}, prefix="val_")

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.metrics(self.net(batch[0]), batch[1])
        self.log_dict(self.metrics)


@same
def metrics_of_validations() -> Any:
    """a `MetricCollection` of validations, by which the best model is chosen"""
    best = checkpoint(every_n_train_steps=None, monitor="val_mse", save_top_k=1)
    return plain(ValidationMetrics(), checkpoints=[best, checkpoint()], val_check_interval=3)


class Hyperparameters(Net):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()


@same
def two_loggers() -> Any:
    """two loggers and `save_hyperparameters`"""
    return plain(Hyperparameters(), logger=[CSVLogger("logs"), TensorBoardLogger("logs")], log_every_n_steps=2)


class Replays(Net):
    """Trains on old samples, too."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = deque[Any](maxlen=64)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.buffer.extend(zip(*batch, strict=True))
        inputs, targets = random.choice(self.buffer)
        return super().training_step(batch, batch_idx) + self.loss((inputs[None], targets[None]))


@differs(r"^module\.buffer$", warned=r"^module\.buffer has \d+ items and had \d+")
def replay_buffer() -> Any:
    """a replay buffer on the module"""
    return plain(Replays())


class Augments(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs = batch[0] + 0.1 * random.random() + 0.1 * float(np.random.rand()) + 0.1 * torch.randn(8)
        return super().training_step((inputs, batch[1]), batch_idx)


@same
def random_numbers_in_steps() -> Any:
    """random numbers of Python, numpy and torch in a training step"""
    return plain(Augments())


@differs("^logged metric train/")
def throughput() -> Any:
    """`ThroughputMonitor`"""
    monitor = callbacks.ThroughputMonitor(batch_size_fn=lambda batch: len(batch[0]), window_size=4)
    return plain(None, monitor, logger=CSVLogger("logs"), log_every_n_steps=1)


@same
def rich() -> Any:
    """`RichProgressBar` and `RichModelSummary`"""
    options = {"enable_progress_bar": True, "enable_model_summary": True}
    return plain(None, callbacks.RichProgressBar(), callbacks.RichModelSummary(), **options)


class Warms(Callback):
    """Notes the loss of each epoch, and saves what it has noted."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.losses.append(float(trainer.callback_metrics["train_loss_epoch"]))
        pl_module.log("best", min(self.losses))

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.losses = list(state_dict["losses"])


@differs(r"^Warms\.losses$")
def metrics_of_a_callback() -> Any:
    """a callback whose `state_dict` has values that differ by rank: each gets those of rank 0"""
    return plain(None, Warms())
