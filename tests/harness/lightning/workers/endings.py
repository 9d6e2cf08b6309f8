"""Ends trainings in every possible way, one after another in one process: `endings.py FOLDER`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from nvrx_lightning import FaultToleranceCallback, FaultToleranceSectionsCallback

from nvrx_core.progress import monitored
from tests.harness.lightning.trainings import Model, loader, pl, say, trainer

FLAG = "FAULT_TOL_FINISHED_FLAG_FILE"
FOLDER = Path(sys.argv[1])


class At(pl.Callback):  # type: ignore[misc,name-defined]
    """Does something after three batches."""

    def __init__(self, act: Callable[[Any], None]) -> None:
        self.act = act

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 3:
            self.act(trainer)


def fit(*callbacks: Any, **options: Any) -> None:
    ckpt_path = options.pop("ckpt_path", None)
    options = {"max_epochs": 2, "enable_checkpointing": False, **options}
    trainer(FOLDER, *callbacks, **options).fit(Model(), loader(), loader(2), ckpt_path=ckpt_path)


def stop(trainer: Any) -> None:
    trainer.should_stop = True


def fail(_: Any) -> None:
    raise ValueError("by design")


def leave(_: Any) -> None:
    sys.exit(0)


def terminate(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def terminate_and_stop(trainer: Any) -> None:
    terminate(trainer)
    stop(trainer)


def resume(callback: Any) -> None:
    """A job that finds nothing left to do."""
    first = trainer(FOLDER / "resumed", max_epochs=1)
    first.fit(Model(), loader())
    fit(callback, max_epochs=1, ckpt_path=first.checkpoint_callback.best_model_path)


def evaluate(callback: Any) -> None:
    made = trainer(FOLDER, callback, enable_checkpointing=False)
    made.validate(Model(), loader(2), verbose=False)
    made.test(Model(), loader(2), verbose=False)
    made.predict(Model(), loader(2))


CASES: dict[str, Callable[[Any], None]] = {
    "max_steps": lambda callback: fit(callback, max_steps=5, max_epochs=-1),
    "max_epochs": fit,
    "max_time": lambda callback: fit(callback, max_time=timedelta(seconds=0.2), max_epochs=-1),
    "should_stop": lambda callback: fit(callback, At(stop)),
    "early_stopping": lambda callback: fit(callback, pl.callbacks.EarlyStopping("loss", patience=0, min_delta=9.0)),
    "nothing_to_do": resume,
    "exception": lambda callback: fit(callback, At(fail)),
    "exit_0": lambda callback: fit(callback, At(leave)),
    "sigterm": lambda callback: fit(callback, At(terminate)),
    "sigterm_and_stop": lambda callback: fit(callback, At(terminate_and_stop)),
    "trial": lambda callback: fit(callback, fast_dev_run=True),
    "evaluation": evaluate,
}


def run(case: str, callback: Any, how: str = "") -> None:
    flag = FOLDER / f"flag-{case}-{how}"
    os.environ[FLAG] = str(flag)
    ended = "returned"
    try:
        CASES[case](callback)
    except (Exception, SystemExit) as error:
        ended = type(error).__name__
    say("ended", case=f"{case} {how}".strip(), ended=ended, flag=flag.exists(), watched=monitored.current() is not None)


def main() -> None:
    for case in CASES:
        run(case, FaultToleranceCallback())
    run("max_steps", FaultToleranceSectionsCallback(autoresume=True, calculate_timeouts=True), "sections")
    again = FaultToleranceCallback()
    for case in ("exception", "max_epochs"):
        run(case, again, "again")
    run("max_epochs", FaultToleranceCallback(autoresume=False), "off")
    os.environ.pop(FLAG)
    folder = FOLDER / "asked"
    CASES["max_epochs"](FaultToleranceCallback(autoresume=True, exp_dir=folder))
    say("asked", files=sorted(file.name for file in folder.iterdir()))


if __name__ == "__main__":
    main()
