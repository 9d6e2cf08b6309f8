"""A fit with the callback of nvidia-resiliency-ext, as its documents have it: `peers_lightning.py FOLDER`.

The last rank hangs in the first cycle; the second one goes on from the last checkpoint, and ends the training.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import lightning.pytorch as pl
import nvrx_lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from nvidia_resiliency_ext import ptl_resiliency
from nvidia_resiliency_ext.ptl_resiliency import FaultToleranceCallback
from nvidia_resiliency_ext.ptl_resiliency.fault_tolerance_sections_callback import FaultToleranceSectionsCallback

RANK, WORLD, CYCLE = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
STEPS = 12


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        if (CYCLE, RANK) == (0, WORLD - 1) and self.global_step == 6:
            time.sleep(120)
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def say(event: str, **fields: object) -> None:
    os.write(1, f"{json.dumps({'event': event, 'rank': RANK, 'cycle': CYCLE, **fields})}\n".encode())


def main(folder: Path) -> None:
    fault_tol_cb = FaultToleranceCallback(
        autoresume=True,
        calculate_timeouts=True,
        logger_name="test_logger",
        exp_dir=folder,
    )
    checkpoint = ModelCheckpoint(dirpath=folder, save_last=True, every_n_train_steps=2)
    trainer = pl.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=WORLD, strategy="ddp", callbacks=[fault_tol_cb, checkpoint],
        logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Model()
    loader = torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=4)
    resumes = (folder / "last.ckpt").exists()
    trainer.fit(model, loader, ckpt_path="last" if resumes else None)
    say("done", step=trainer.global_step, resumed=resumes)


if __name__ == "__main__":
    for name in ptl_resiliency.__all__:
        assert getattr(ptl_resiliency, name) is getattr(nvrx_lightning, name)
    assert issubclass(FaultToleranceSectionsCallback, pl.Callback)
    main(Path(sys.argv[1]))
