"""Two ranks that resume from their last checkpoint after a fault (NVRX_TEST_FAULTS): `surviving.py FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch.distributed as dist
from nvrx_lightning import FaultToleranceCallback

from nvrx_core.fault_tolerance import WorkloadAction, WorkloadControlRequest
from tests.harness.lightning.trainings import Model, loader, pl, say, trainer


def judge(error: BaseException) -> WorkloadControlRequest:
    say("judged", error=str(error))
    return WorkloadControlRequest(WorkloadAction[os.environ["NVRX_TEST_ACTION"]], "by policy")


def main() -> None:
    folder = Path(sys.argv[1])
    policy = judge if "NVRX_TEST_ACTION" in os.environ else None
    callback = FaultToleranceCallback(
        simulated_fault_params=os.environ.get("NVRX_TEST_FAULTS"), exc_handling_policy=policy
    )
    checkpoints = pl.callbacks.ModelCheckpoint(folder / "checkpoints", every_n_train_steps=2, save_last=True)
    made = trainer(folder, callback, checkpoints)
    last = folder / "checkpoints" / "last.ckpt"
    model = Model()
    say("begins", resumes=last.exists())
    made.fit(model, loader(), loader(3), ckpt_path=last if last.exists() else None)
    say("fitted", step=made.global_step, norm=float(model.layer.weight.norm()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
