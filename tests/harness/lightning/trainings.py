"""A small model, its data, and a trainer for them; the package of Lightning is that of NVRX_TEST_LIGHTNING."""

from __future__ import annotations

import importlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
pl: Any = importlib.import_module(os.environ.get("NVRX_TEST_LIGHTNING", "lightning.pytorch"))

RANK, CYCLE = int(os.environ.get("RANK", "0")), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def say(event: str, **fields: Any) -> None:
    """Print a line for the test."""
    os.write(1, f"{json.dumps({'event': event, 'rank': RANK, 'cycle': CYCLE, **fields})}\n".encode())


class Model(pl.LightningModule):  # type: ignore[misc,name-defined]
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        return self._loss(batch)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self._loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", self._loss(batch), sync_dist=True)

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def _loss(self, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        return loss


def loader(batches: int = 8) -> DataLoader[Any]:
    """Batches of two samples."""
    return DataLoader(TensorDataset(torch.ones(2 * batches * int(os.environ.get("WORLD_SIZE", "1")), 4)), batch_size=2)


def trainer(folder: Path, *callbacks: Any, **more: Any) -> Any:
    """A trainer on CPUs that writes to a folder."""
    ddp = int(os.environ.get("WORLD_SIZE", "1")) > 1
    options = {
        "accelerator": "cpu", "devices": int(os.environ.get("LOCAL_WORLD_SIZE", "1")), "max_epochs": 2, "logger": False,
        "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder,
        "strategy": "ddp" if ddp else "auto",
    }  # fmt: skip
    return pl.Trainer(callbacks=list(callbacks), **{**options, **more})
