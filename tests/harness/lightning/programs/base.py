"""What the trainings are made of: data, a network, and a Trainer that saves in the middle of each epoch."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import nvrx_lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

__all__ = [
    "Net",
    "checkpoint",
    "make_trainer",
    "plain",
    "samples",
    "saved_at_epochs",
    "train_loader",
    "validation_loader",
]


def samples(number: int = 96) -> TensorDataset:
    inputs = torch.randn(number, 8, generator=torch.Generator().manual_seed(3))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def train_loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(samples(), **{"batch_size": 4, "shuffle": True, **options})


def validation_loader() -> DataLoader[Any]:
    return DataLoader(samples(32), batch_size=4)


def make_trainer(**options: Any) -> pl.Trainer:
    pl.seed_everything(1, verbose=False)
    chosen = [*options.pop("callbacks", ()), *options.pop("checkpoints", [checkpoint()])]
    ours = {
        "strategy": nvrx_lightning.InProcessDDPStrategy(), "accelerator": "cpu", "devices": 2, "max_epochs": 3,
        "logger": False, "enable_progress_bar": False, "enable_model_summary": False, "callbacks": chosen,
    }  # fmt: skip
    return pl.Trainer(**{**ours, **options})


def checkpoint(**options: Any) -> ModelCheckpoint:
    return ModelCheckpoint(**{"dirpath": "checkpoints", "every_n_train_steps": 4, "save_top_k": -1, **options})


def saved_at_epochs() -> ModelCheckpoint:
    return checkpoint(every_n_train_steps=None, every_n_epochs=1)


class Net(pl.LightningModule):
    """A small network with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        )

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def plain(module: pl.LightningModule | None = None, *more: Callback, **options: Any) -> Any:
    """Dropout, shuffled data, a validation after each epoch."""
    return make_trainer(callbacks=more, **options), module or Net(), train_loader(), validation_loader()
