"""What cannot be verified, and what to write instead."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.loggers.logger import DummyLogger

from tests.harness.lightning.programs.base import Net, checkpoint, make_trainer, train_loader
from tests.harness.lightning.programs.expectation import refused

__all__: list[str] = []


class Unseeded(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        noise = torch.empty(1).uniform_(generator=UNSEEDED)
        return super().training_step(batch, batch_idx) * (1 + noise)


UNSEEDED = torch.Generator()


@refused(r"two fits without a fault differ.* seed_everything")
def unseeded() -> Any:
    UNSEEDED.seed()
    return make_trainer(), Unseeded(), train_loader()


@refused(r"write strategy=nvrx_lightning.InProcessDDPStrategy\(\), or in_process\(...\)")
def without_restart() -> Any:
    return make_trainer(strategy="ddp"), Net(), train_loader()


@refused(r"the Trainer asks for 1 nodes of 1 devices.* write devices=2")
def one_device() -> Any:
    return make_trainer(devices=1), Net(), train_loader()


@refused(r'(?s)make\(\) has failed with .*gpu.*programs.base\.py.*write accelerator="cpu", devices=2')
def gpus() -> Any:
    return make_trainer(accelerator="gpu"), Net(), train_loader()


@refused(r"has returned Trainer: let it return `trainer, module`, and what")
def no_tuple() -> Any:
    return make_trainer()


@refused(r"has returned a DataLoader second, and no LightningModule")
def no_module() -> Any:
    return make_trainer(), train_loader()


@refused(r"make\(\) has failed with FileNotFoundError: data/train.csv\n  in .*refusals.py, line \d+")
def fails() -> Any:
    raise FileNotFoundError("data/train.csv")


@refused(r"make\(\) has failed with SystemExit: 4\n  in .*refusals.py, line \d+: raise SystemExit\(4\)")
def exits() -> Any:
    raise SystemExit(4)


@refused(r"no checkpoint is saved in 3 epochs of 6 batches, though .* ModelCheckpoint\(every_n_train_steps=2\)")
def no_checkpoint_in_a_short_fit() -> Any:
    saved = checkpoint(every_n_train_steps=None, every_n_epochs=1, monitor="val_loss")
    return make_trainer(checkpoints=[saved], limit_val_batches=0), Net(), train_loader(), train_loader()


class MLFlowLogger(DummyLogger):
    """A logger of this name writes to a server."""


@refused(r"each fit of the verification would log to your MLFlowLogger: write logger=CSVLogger\(...\)")
def a_logger_without_a_folder() -> Any:
    return make_trainer(logger=MLFlowLogger()), Net(), train_loader()


class Fails(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        raise KeyError("label")


@refused(r"the fit fails without a fault, on rank \d: KeyError: 'label'")
def a_step_that_fails() -> Any:
    return make_trainer(), Fails(), train_loader()
