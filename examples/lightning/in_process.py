"""A training with Lightning that goes on in its processes after an exception, a hang or a lost rank.

    torchrun --nproc-per-node 2 examples/lightning/in_process.py --folder run --faults "1:12:backward=exception"

Both ranks restart from the newest checkpoint, within a second, and no process ends. Under `ft_launcher` in the place of
torchrun, rank 0 may be the one that is lost, and a rank that hangs before or after `fit` is ended by its monitor:

    ft_launcher --nproc-per-node 2 examples/lightning/in_process.py --folder run --faults "0:12:optimizer=kill"

With `--fully-sharded`, the weights are sharded over the ranks (FSDP2), and the strategy is the one for that.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from digits import Digits, loaders
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from nvrx_lightning import FaultToleranceCallback, InProcessDDPStrategy, InProcessModelParallelStrategy

from nvrx_core.inprocess import last_restart


class ShardedDigits(Digits):
    def configure_model(self) -> None:
        from torch.distributed.fsdp import fully_shard

        for layer in self.net:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="of the checkpoints")
    parser.add_argument("--faults", help="to inject, as rank:step:phase=kind")
    parser.add_argument("--fully-sharded", action="store_true")
    options = parser.parse_args()

    seed_everything(1, verbose=False)
    sharded = InProcessModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=sharded if options.fully_sharded else InProcessDDPStrategy(),
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            FaultToleranceCallback(simulated_fault_params=options.faults),
            ModelCheckpoint(options.folder, every_n_train_steps=5, save_last=True),
        ],
    )
    trainer.fit(ShardedDigits() if options.fully_sharded else Digits(), *loaders())
    rank, accuracy = f"rank {trainer.global_rank} of {trainer.world_size}", float(trainer.callback_metrics["accuracy"])
    restart = last_restart() or "no restart"
    print(f"{rank} is done after step {trainer.global_step}: {accuracy:.2f}; {restart}", flush=True)


if __name__ == "__main__":
    main()
