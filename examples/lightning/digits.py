"""What the examples train: a small network that reads handwritten digits of 8 by 8 pixels."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

Loader = DataLoader[tuple[torch.Tensor, ...]]


class Digits(LightningModule):
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


def loaders() -> tuple[Loader, Loader]:
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    training, validation = random_split(data, [1500, 297], torch.Generator().manual_seed(0))
    return DataLoader(training, batch_size=32, shuffle=True), DataLoader(validation, batch_size=64)
