"""The training of `demo.py`, as each rank runs it: Lightning, a real data set, and faults at given steps.

Two ranks train and a third one waits in reserve. What belongs to nvrx is the strategy and the callback. `make` is
the same training for `python -m nvrx_lightning.verify`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from nvrx_lightning import FaultToleranceCallback, InProcessDDPStrategy
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from nvrx_core import inprocess
from nvrx_core.inprocess.rank_assignment import FillGaps, MaxActiveWorldSize

BATCH = 32
EVERY = 10
"""Steps from one checkpoint to the next."""


class Digits(LightningModule):
    """Reads handwritten digits of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        conv = torch.nn.Conv2d
        self.net = torch.nn.Sequential(
            conv(1, 48, 3, padding=1), torch.nn.ReLU(), conv(48, 48, 3, padding=1), torch.nn.ReLU(),
            torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(48 * 16, 10),
        )  # fmt: skip

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Journal(Callback):
    """Tells the demo of each step, and injects a fault at those of the schedule, each once in the job.

    Args:
        folder: of the run.
        faults: step to [rank, kind].
    """

    def __init__(self, folder: Path, faults: dict[str, list[Any]]) -> None:
        self._folder, self._faults = folder, faults
        records = folder / "records" / f"{os.environ['RANK']}-{os.getpid()}.jsonl"
        self._file = records.open("ab", buffering=0)

    def write(self, event: str, **fields: object) -> None:
        """Write one line."""
        line = {"event": event, "monotonic": time.monotonic(), "pid": os.getpid(), **fields}
        self._file.write(json.dumps(line).encode() + b"\n")

    def on_train_batch_start(self, trainer: Trainer, *_: object) -> None:
        rank, kind = self._faults.get(str(trainer.global_step), [None, ""])
        if trainer.global_rank == rank and not (marker := self._folder / f"injected-{trainer.global_step}").exists():
            marker.touch()
            self.write("fault_injected", step=trainer.global_step, rank=rank, kind=kind)
            inject_fault(kind)

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, *_: object) -> None:
        call = inprocess.current_call()
        attempt = 0 if call is None else call.iteration
        step, loss = trainer.global_step, float(outputs["loss"])
        self.write("step", rank=trainer.global_rank, attempt=attempt, step=step, loss=loss, of=trainer.max_steps)


def inject_fault(kind: str) -> None:
    """Break this rank."""
    match kind:
        case "exception":
            raise RuntimeError("a fault that the demo has injected")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            time.sleep(3600)


def make_trainer(folder: Path, steps: int, devices: int, *callbacks: Callback) -> Trainer:
    """The Trainer; of more than two devices, the others wait in reserve."""
    torch.set_num_threads(1)
    seed_everything(1, verbose=False)
    strategy = InProcessDDPStrategy(
        rank_assignment=inprocess.Compose(MaxActiveWorldSize(2), FillGaps()),
        soft_timeout=timedelta(seconds=2),
        hard_timeout=timedelta(seconds=4),
        process_group_backend="gloo",
    )
    checkpoint = ModelCheckpoint(folder / "checkpoints", every_n_train_steps=EVERY)
    return Trainer(
        accelerator="cpu", devices=devices, strategy=strategy, max_steps=steps, max_epochs=-1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        callbacks=[FaultToleranceCallback(), checkpoint, *callbacks],
    )  # fmt: skip


def digits() -> DataLoader[Any]:
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32).unflatten(1, (1, 8, 8)) / 16, torch.tensor(labels))
    return DataLoader(data, BATCH, shuffle=True)


def make() -> tuple[Trainer, LightningModule, DataLoader[Any]]:
    """The training as `nvrx_lightning.verify` takes it: on two ranks, and without the demo's own callback."""
    return make_trainer(Path(), steps=240, devices=2), Digits(), digits()


def main() -> None:
    folder, steps, faults = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    journal = Journal(folder, faults)
    trainer, model = make_trainer(folder, steps, 3, journal), Digits()
    trainer.fit(model, digits())
    if trainer.global_step:  # a rank that has stayed in reserve has trained nothing
        weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
        digest = hashlib.sha256(weights).hexdigest()
        journal.write("finished", weights=digest, step=trainer.global_step, epoch=trainer.current_epoch)


if __name__ == "__main__":
    main()
