"""Trains with the callback and an in-process strategy, under a launcher or alone: `in_process.py FOLDER`."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from nvrx_lightning import FaultToleranceCallback, InProcessDDPStrategy
from nvrx_lightning.monitoring.profiler import PhaseProfiler
from nvrx_lightning.monitoring.progress_reporter import ProgressReporter
from nvrx_lightning.monitoring.training import Training

from nvrx_core.fault_tolerance import WorkloadAction, WorkloadControlRequest
from nvrx_core.inprocess import current_call
from nvrx_core.progress import monitored
from nvrx_core.progress.page import ProgressField, SectionField
from tests.harness.lightning.trainings import RANK, Model, loader, pl, say, trainer

BUSY = float(os.environ.get("NVRX_TEST_BUSY", "0"))
FAILS_IN = [name for name in [os.environ.get("NVRX_TEST_FAILS_IN", "")] if name and RANK == 1]
"""The hook of the set-up that still has to fail."""


def fail_once(hook: str) -> None:
    if hook in FAILS_IN:
        FAILS_IN.remove(hook)
        raise RuntimeError(f"fault in {hook}")


def policy(exception: BaseException) -> WorkloadControlRequest:
    say("consulted", exception=repr(exception))
    return WorkloadControlRequest(WorkloadAction.Continue, "")


class FailingModel(Model):
    """Fails in a hook that Lightning calls after the callbacks' `setup`."""

    def setup(self, stage: str) -> None:
        fail_once("setup")

    def configure_model(self) -> None:
        fail_once("configure_model")


class Earlier(pl.Callback):  # type: ignore[misc,name-defined]
    """Fails before the callback of fault tolerance is set up."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        fail_once("an earlier callback")


class Spy(pl.Callback):  # type: ignore[misc,name-defined]
    """Prints the progress page, and leftovers, at the end of the training; keeps a validation run busy."""

    def __init__(self) -> None:
        self.restarts = list[int]()

    def on_restart(self, trainer: Any, pl_module: Any, attempt: int) -> None:
        self.restarts.append(attempt)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        end = time.monotonic() + BUSY
        while not trainer.sanity_checking and time.monotonic() < end:
            pass

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        call, rank = current_call(), monitored.current()
        assert call is not None
        sections = {}
        if rank is not None:
            words = rank.page.words
            sections = {name: words[slot + SectionField.COUNT] for name, slot in rank.page.sections().items()}
            say("watched", judged_by_call=words[ProgressField.ITERATION] == call.iteration)
        say("page", sections=sections, iteration=call.iteration, restarts=self.restarts)
        gc.collect()
        kinds = [type(each) for each in gc.get_objects() if type(each) in (Training, PhaseProfiler, ProgressReporter)]
        say("left", objects=Counter(kind.__name__ for kind in kinds), threads=threading.active_count())


def main() -> None:
    folder = Path(sys.argv[1])
    callback = FaultToleranceCallback(
        simulated_fault_params=os.environ.get("NVRX_TEST_FAULTS"), exp_dir=folder, exc_handling_policy=policy
    )
    timeouts = {"soft_timeout": timedelta(seconds=float(os.environ.get("NVRX_TEST_SOFT", "60")))}
    strategy = InProcessDDPStrategy(**timeouts, hard_timeout=timedelta(seconds=90))
    checkpoints = pl.callbacks.ModelCheckpoint(folder / "checkpoints", every_n_train_steps=2, save_last=True)
    made = trainer(folder, Earlier(), callback, checkpoints, Spy(), strategy=strategy)
    made.fit(FailingModel(), loader(), loader(3))
    flag = os.environ.get("FAULT_TOL_FINISHED_FLAG_FILE", "")
    say("fitted", flag=Path(flag).is_file(), step=made.global_step, watched=monitored.current() is not None)


if __name__ == "__main__":
    main()
