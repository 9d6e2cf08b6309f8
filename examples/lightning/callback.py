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

from digits import Digits, loaders
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from nvrx_lightning import FaultToleranceCallback


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="of the checkpoints and the learned timeouts")
    parser.add_argument("--faults", help="to inject, as rank:step:phase=kind")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    seed_everything(1, verbose=False)
    last = options.folder / "last.ckpt"
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # as many as the launcher starts
        strategy="ddp",
        max_epochs=options.epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
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
