"""A training with Lightning that its launcher restarts when a rank hangs, fails or is lost.

    ft_launcher --nproc-per-node 2 --max-restarts 2 --ft-rank-section-timeouts step:20 \
        examples/lightning/callback.py --folder run --faults "1:12:backward=hang_sleep"

Rank 1 hangs in the backward pass of step 12. Its rank monitor ends it after 20 s, the launcher starts both ranks again,
and the training goes on from its last checkpoint. Without `--faults` it is a plain training; so it is under `python`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from nvrx_lightning import FaultToleranceCallback
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Digits(LightningModule):
    """Handwritten digits of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        images, labels = batch
        right = (self.net(images).argmax(dim=1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def loaders() -> tuple[DataLoader[tuple[torch.Tensor, ...]], DataLoader[tuple[torch.Tensor, ...]]]:
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    training, validation = torch.utils.data.random_split(data, [1500, 297], torch.Generator().manual_seed(0))
    return DataLoader(training, batch_size=32, shuffle=True), DataLoader(validation, batch_size=64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="of the checkpoints and the learned timeouts")
    parser.add_argument("--faults", help="to inject, as rank:step:phase=kind")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    seed_everything(1)
    last = options.folder / "last.ckpt"
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # as many as the launcher starts
        strategy="ddp",
        max_epochs=options.epochs,
        logger=False,
        enable_progress_bar=False,
        callbacks=[
            FaultToleranceCallback(simulated_fault_params=options.faults),
            ModelCheckpoint(options.folder, every_n_train_steps=5, save_last=True),
        ],
    )
    resumes = last if last.exists() else None
    print(f"rank {trainer.global_rank} begins {'from ' + last.name if resumes else 'anew'}", flush=True)
    trainer.fit(Digits(), *loaders(), ckpt_path=resumes)
    accuracy = float(trainer.callback_metrics["accuracy"])
    print(f"rank {trainer.global_rank} is done after step {trainer.global_step}: {accuracy:.2f}", flush=True)


if __name__ == "__main__":
    main()
