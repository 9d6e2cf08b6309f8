"""Weights: averages, layers that are frozen or made late, buffers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import Callback
from torch.nn.utils.parametrizations import spectral_norm

from tests.harness.lightning.programs.base import Net, plain
from tests.harness.lightning.programs.expectation import differs, fails, same

__all__: list[str] = []


@same
def swa() -> Any:
    """`StochasticWeightAveraging`"""
    return plain(None, callbacks.StochasticWeightAveraging(5e-2, swa_epoch_start=1, annealing_epochs=2))


@same
def ema() -> Any:
    """`EMAWeightAveraging`"""
    return plain(None, callbacks.EMAWeightAveraging(decay=0.9, update_every_n_steps=1))


class Ema(Callback):
    """Averages weights, and saves the averages."""

    def __init__(self) -> None:
        self.average: dict[str, torch.Tensor] = {}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        for name, value in pl_module.state_dict().items():
            self.average[name] = 0.9 * self.average.get(name, value) + 0.1 * value

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.average = dict(state_dict["average"])


@same
def ema_of_ones_own() -> Any:
    """averages of weights in a callback with `state_dict`"""
    return plain(None, Ema())


class BatchNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))


@same
def batch_norm() -> Any:
    """batch norm"""
    return plain(BatchNorm())


class Finetuning(callbacks.BaseFinetuning):
    """Trains the last layer, from the second epoch on all."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.net[:-1])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net[:-1], optimizer)


class Trainable(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW((each for each in self.parameters() if each.requires_grad), lr=1e-2)


@differs("^output of training_step.loss$", warned="was frozen when DistributedDataParallel was set up")
def finetuning() -> Any:
    """`BaseFinetuning`: layers that are unfrozen in the second epoch"""
    return plain(Trainable(), Finetuning())


class Configured(Net):
    def __init__(self) -> None:
        super().__init__()
        self.net: Any = None

    def configure_model(self) -> None:
        if self.net is None:
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))


@same
def configure_model() -> Any:
    """a model that `configure_model` makes"""
    return plain(Configured())


class Backbone(Net):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = self.net[:-1], self.net[-1]

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.head.parameters(), lr=1e-2)


@differs("^output of training_step.loss$", warned="was frozen when DistributedDataParallel was set up")
def backbone_finetuning() -> Any:
    """`BackboneFinetuning`"""
    return plain(Backbone(), callbacks.BackboneFinetuning(unfreeze_backbone_at_epoch=1, lambda_func=lambda epoch: 1.5))


class Distilled(Net):
    """Learns from a copy of itself that stays as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.net).eval().requires_grad_(requires_grad=False)

    def loss(self, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            taught = self.teacher(batch[0])
        return super().loss(batch) + torch.nn.functional.mse_loss(self.net(batch[0]), taught)


@same
def teacher() -> Any:
    """a frozen teacher"""
    return plain(Distilled())


class MomentumTeacher(Distilled):
    def follow(self) -> None:
        for slow, fast in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.1)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.follow()


@same
def momentum_teacher() -> Any:
    """a teacher that follows the weights in `on_train_batch_start`"""
    return plain(MomentumTeacher())


class LateMomentumTeacher(MomentumTeacher):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None: ...

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.follow()


@differs(
    "output of training_step.loss", warned="leaves out what LateMomentumTeacher.on_train_batch_end does after the save"
)
def late_momentum_teacher() -> Any:
    """a teacher that follows the weights in the module's `on_train_batch_end`, after a checkpoint is saved"""
    return plain(LateMomentumTeacher())


class Spectral(Net):
    def __init__(self) -> None:
        super().__init__()
        self.net[0] = spectral_norm(torch.nn.Linear(8, 16))


@same
def spectral() -> Any:
    """`spectral_norm`"""
    return plain(Spectral())


class Queue(Net):
    """Keeps the last inputs, as contrastive learning does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(16, 8))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        begin = int(self.position)
        self.queue[begin : begin + len(batch[0])] = batch[0]
        self.position.fill_((begin + len(batch[0])) % 16)
        return super().training_step(batch, batch_idx) + self.net(self.queue).square().mean()


@same
def queue_in_a_buffer() -> Any:
    """a queue of samples in a buffer"""
    return plain(Queue())


@fails("params.* appears not to match|must match the size", differs="output of training_step.loss")
def pruning() -> Any:
    """`ModelPruning`"""
    net = Net()
    return plain(net, callbacks.ModelPruning("l1_unstructured", [(net.net[0], "weight")], amount=0.2))


class Recurrent(Net):
    """Goes on from the state of the batch before."""

    def __init__(self) -> None:
        super().__init__()
        self.keep(torch.zeros(8))

    def keep(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs = batch[0] + 0.1 * self.hidden
        self.hidden = inputs.mean(0).detach()
        return super().training_step((inputs, batch[1]), batch_idx)


@differs(r"^module\.hidden$")
def hidden_state() -> Any:
    """a tensor on the module that goes from batch to batch"""
    return plain(Recurrent())


class RecurrentBuffer(Recurrent):
    def keep(self, hidden: torch.Tensor) -> None:
        self.register_buffer("hidden", hidden)


@same
def hidden_state_in_a_buffer() -> Any:
    """a tensor that goes from batch to batch, in a buffer"""
    return plain(RecurrentBuffer())
