"""A rank of a training with Lightning on a CUDA device, under an in-process strategy; each is a node of its own."""

from __future__ import annotations

import faulthandler
import os
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import nvrx_lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from nvrx_core.inprocess import current_call
from tests.harness.process.workers.record import Record

WIDTH, STEPS, TARGET = 512, 12, 1
STRATEGIES = {
    "ddp": nvrx_lightning.InProcessDDPStrategy,
    "fsdp": lambda: nvrx_lightning.InProcessFSDPStrategy(auto_wrap_policy={torch.nn.Linear}),
    "fsdp2": lambda: nvrx_lightning.InProcessModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
}


class Model(pl.LightningModule):
    """Two layers; on the target, a step of each iteration but the last fails."""

    def __init__(self, sharded: bool) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1))
        self.sharded, self.record, self.began = sharded, Record.of_environment(), set[int]()

    def configure_model(self) -> None:
        if self.sharded and not isinstance(next(self.parameters()), torch.distributed.tensor.DTensor):
            for layer in self.layers:
                torch.distributed.fsdp.fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        call = current_call()
        iteration, restarts = call.iteration, int(os.environ["NVRX_TEST_RESTARTS"])
        if iteration not in self.began:
            self.began.add(iteration)
            self.record("began", iteration=iteration, allocated=torch.cuda.memory_allocated(), step=self.global_step)
        if iteration < restarts and self.global_step == 2 + iteration and int(os.environ["NVRX_INITIAL"]) == TARGET:
            time.sleep(0.1)  # noqa: TID251 - until the other rank is in its backward pass
            self.record("fault", iteration=iteration)
            raise RuntimeError("injected")
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    faulthandler.enable()
    kind, folder = os.environ["NVRX_TEST_STRATEGY"], Path(os.environ["NVRX_TEST_CHECKPOINTS"])
    rank = os.environ["RANK"]
    os.environ.update(
        NVRX_INITIAL=rank, GROUP_RANK=rank, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", NCCL_HOSTID=f"host-of-{rank}",
        TORCHELASTIC_RUN_ID="gpu", TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS="0", ROLE_RANK=rank,
        ROLE_WORLD_SIZE="2",
    )  # fmt: skip
    pl.seed_everything(7)
    data = DataLoader(TensorDataset(torch.randn(STEPS * 8, WIDTH)), batch_size=4)
    trainer = pl.Trainer(
        accelerator="gpu", devices=1, num_nodes=2, strategy=STRATEGIES[kind](), max_epochs=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        callbacks=[pl.callbacks.ModelCheckpoint(folder / "saves", every_n_train_steps=1, save_last=True)],
    )  # fmt: skip
    model = Model(kind == "fsdp2")
    trainer.fit(model, data)
    total = torch.zeros(1, device="cuda")
    for each in trainer.model.parameters():
        local = each.to_local() if hasattr(each, "to_local") else each
        total += local.detach().double().square().sum().float()
    model.record("done", steps=trainer.global_step, norm=float(total))


if __name__ == "__main__":
    main()
