"""What a step of a Lightning fit costs that keeps its state in memory, beside one that goes on from checkpoints.

    python tests/benchmarks/lightning_step.py [--fits N] [--model mlp|norms]

Two CPU ranks, DDP over gloo; CPU time of the process of rank 0 a step, fits of both kinds in alternation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from nvrx_lightning import InProcessDDPStrategy
from report import machine_lines
from torch.utils.data import DataLoader, TensorDataset

WARM_UP, STEPS = 50, 500
KINDS = ("memory", "checkpoint")


class Net(pl.LightningModule):
    """A network of small layers; `norms` has 60 batch norms between them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        norms = [torch.nn.BatchNorm1d(64) for _ in range(60 if kind == "norms" else 0)]
        hidden = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
        self.net = torch.nn.Sequential(*hidden, *norms, torch.nn.Linear(64, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class StepCost(Callback):
    """Measures the CPU time from the end of the warm-up to the end of the fit."""

    begun = cost = 0.0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == WARM_UP:
            self.begun = time.process_time()
        elif trainer.global_step == WARM_UP + STEPS:
            self.cost = (time.process_time() - self.begun) / STEPS


def fit(resume: str, model: str) -> None:
    """Run one fit in this process and in that of the other rank; rank 0 prints the seconds a step."""
    torch.set_num_threads(1)
    cost = StepCost()
    steps = WARM_UP + STEPS
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy=InProcessDDPStrategy(resume=resume), max_steps=steps, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[cost, ModelCheckpoint(os.environ["NVRX_BENCH_FOLDER"], every_n_train_steps=10 * steps)],
    )  # fmt: skip
    trainer.fit(Net(model), DataLoader(TensorDataset(torch.randn(16 * steps, 64)), batch_size=8))
    if trainer.is_global_zero:
        print(f"cost {cost.cost}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fits", type=int, default=3, help="of each kind (default: 3)")
    parser.add_argument("--model", choices=("mlp", "norms"), default="mlp")
    parser.add_argument("--fit", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        fit(options.fit, options.model)
        return
    costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(options.fits):
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, __file__, "--fit", kind, "--model", options.model]
                environment = {**os.environ, "NVRX_BENCH_FOLDER": folder}
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            (line,) = (line for line in done.stdout.splitlines() if line.startswith("cost "))
            costs[kind].append(1e3 * float(line.split()[1]))
    print("\n".join(machine_lines(None)))
    for kind, values in costs.items():
        shown = ", ".join(f"{value:.2f}" for value in values)
        print(f"resume={kind!r}: {statistics.median(values):.2f} ms of CPU a step ({shown})")
    more = statistics.median(a - b for a, b in zip(*costs.values(), strict=True))
    print(f"from memory, a step costs {more:.2f} ms more")


if __name__ == "__main__":
    main()
