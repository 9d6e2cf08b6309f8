"""What follows a checkpoint takes place once, as in the undisturbed run: validations, ends of epochs, schedulers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.harness.lightning.account import (
    how_it_ended,
    resumed_steps,
    rows_of,
    trained_on,
    what_counted,
    what_happened,
    what_is_shown,
)
from tests.harness.lightning.setting import Fault, Setting

EPOCHS = {"every_n_epochs": 1, "save_top_k": -1}


def setting(step: int, *, every: int = 5, where: str = "train", epochs: bool = False, **trainer: Any) -> Setting:
    """Two epochs of 10 steps, with a validation after each."""
    return Setting(
        faults=(Fault(1, step, where=where),), validate=True, epoch_metrics=True, trainer=trainer, dropout=0.2,
        checkpoint=EPOCHS if epochs else {"every_n_train_steps": every, "save_top_k": -1},
    )  # fmt: skip


CASES = {
    "a validation that is due after the batch": (setting(8, val_check_interval=5), 5),
    "a validation in the middle, from before it": (setting(7, every=4, val_check_interval=5), 4),
    "the validation and the end of an epoch": (setting(13), 10),
    "the end of an epoch without a validation": (setting(13, check_val_every_n_epoch=2), 10),
    "the end of an epoch with max_steps": (setting(13, max_steps=20, max_epochs=-1), 10),
    "an epoch that a checkpoint has ended, with max_steps": (setting(13, epochs=True, max_steps=20, max_epochs=-1), 10),
    "the end of a fit, after its last step": (setting(1, where="epoch_end"), 20),
    "the end of a fit, after its last step, with max_steps": (setting(1, where="epoch_end", max_steps=20), 20),
    "the end of a fit, after its last epoch": (setting(0, where="train_end", epochs=True), 20),
    "the end of a limited epoch": (setting(8, every=6, limit_train_batches=6), 6),
    "the end of accumulated gradients": (setting(4, every=3, accumulate_grad_batches=4), 3),
}  # fmt: skip
CASES |= {
    f"the end of an epoch, by a loader that is {data}": (dataclasses.replace(setting(13), data=data), 10)
    for data in ("stateful", "continued")
}
CASES["a validation that a fault has ended"] = (setting(10, where="validation_last"), 10)
PLATEAUS = {
    "a metric of the training": (dataclasses.replace(setting(17, max_epochs=4), plateau="loss_epoch"), 15),
    "a metric of the validation": (dataclasses.replace(setting(23, max_epochs=4), plateau="val_loss"), 20),
    "at the end of an epoch": (dataclasses.replace(setting(23, epochs=True, max_epochs=4), plateau="val_loss"), 20),
}


ALWAYS = {
    "a validation that a fault has ended", "the end of an epoch, by a loader that is continued",
    "a validation that is due after the batch", "the validation and the end of an epoch", "a metric of the training",
    "the end of a fit, after its last step, with max_steps", "an epoch that a checkpoint has ended, with max_steps",
}  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.nightly] * (case not in ALWAYS)) for case in (*CASES, *PLATEAUS)],
)
def test_what_follows_a_checkpoint_takes_place_as_in_the_undisturbed_run(case, run):
    disturbed, resumed = {**CASES, **PLATEAUS}[case]
    job = run(disturbed)
    twin = run(dataclasses.replace(disturbed, faults=(), strategy="DDPStrategy"))
    epochs = disturbed.checkpoint == EPOCHS
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert resumed_steps(job) == {0: 0, 1: resumed}
    assert what_happened(job, epochs=epochs) == what_happened(twin, epochs=epochs)
    assert what_is_shown(job) == what_is_shown(twin)
    assert how_it_ended(job) == how_it_ended(twin)


AT_THE_END = (Fault(1, 0, where="train_end"),)
AFTER_A_VALIDATION = {"save_top_k": -1, "save_on_train_epoch_end": False}


def longer(given: Setting, **changes: Any) -> Setting:
    """A training that would go on for six epochs, if it did not decide to stop."""
    return dataclasses.replace(given, trainer={"max_epochs": 6, **given.trainer}, **changes)


def stopping(given: Setting, monitor: str) -> Setting:
    return longer(given, early_stopping=True, monitor=monitor, patience=1, faults=AT_THE_END)


def metrics_after(step: int, every: int) -> Setting:
    """A schedule by a metric of the epoch, and checkpoints that are saved in validations."""
    given = setting(step, val_check_interval=every, max_epochs=4)
    return dataclasses.replace(given, checkpoint=AFTER_A_VALIDATION, plateau="loss_epoch", loggers=("csv",))


def logged(given: Setting, **checkpoint: Any) -> Setting:
    return dataclasses.replace(given, loggers=("csv",), checkpoint={**(given.checkpoint or {}), **checkpoint})


DECISIONS = {
    "a schedule of known length, from the middle of an epoch": (dataclasses.replace(setting(8), warmup=True), 5),
    "a schedule of known length, from the end of an epoch": (
        dataclasses.replace(setting(13, epochs=True), warmup=True), 10,
    ),
    "early stopping at the end of an epoch": (stopping(setting(1, epochs=True), "loss_epoch"), 20),
    "early stopping after a validation": (stopping(setting(1, every=1, val_check_interval=3), "val_loss"), 6),
    "a stop in a later hook than the save": (longer(setting(1), stop_at=15, faults=AT_THE_END), 15),
    "a stop in the middle of an epoch": (longer(setting(1, every=1), stop_at=13, faults=AT_THE_END), 13),
    "a stop on one rank before the fault of the other": (
        longer(setting(1, every=1), stop_at=13, faults=(Fault(1, 13, where="after_stop"),)), 13,
    ),
    "metrics of an epoch, after a validation in it": (metrics_after(8, every=3), 6),
    "metrics of an epoch, after each of its validations": (metrics_after(7, every=5), 5),
    "the last rows of an epoch": (logged(setting(10, where="second_dump", epochs=True), save_last=True), 10),
    "the last rows of the fit": (logged(dataclasses.replace(setting(1, epochs=True), faults=AT_THE_END)), 20),
    "a learning rate that was searched": (dataclasses.replace(setting(17), callbacks=("lr_find",)), 15),
    "averaged weights at the end of the fit": (
        dataclasses.replace(setting(1), callbacks=("averaging",), batch_norm=True, faults=AT_THE_END), 20,
    ),
}  # fmt: skip
DECIDED_NIGHTLY = {
    "a schedule of known length, from the end of an epoch", "early stopping after a validation",
    "a stop in the middle of an epoch", "metrics of an epoch, after each of its validations",
    "the last rows of the fit", "averaged weights at the end of the fit",
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.nightly] * (case in DECIDED_NIGHTLY)) for case in DECISIONS]
)
def test_what_a_fit_has_decided_and_counted_survives(case, run):
    disturbed, resumed = DECISIONS[case]
    job = run(disturbed)
    twin = run(dataclasses.replace(disturbed, faults=(), strategy="DDPStrategy"))
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert resumed_steps(job) == {0: 0, 1: resumed}
    assert how_it_ended(job) == how_it_ended(twin)
    assert trained_on(job) == trained_on(twin)
    assert what_counted(job) == what_counted(twin)
    assert what_is_shown(job) == what_is_shown(twin)
    assert "one of several" not in job.errors(0)
    assert "The dirpath has changed" not in job.errors(0)
    if disturbed.loggers:
        assert [row for row in rows_of(job) if "nvrx/restarts" not in row] == rows_of(twin)


def test_a_decision_to_stop_survives_a_second_fault_before_the_training(run):
    again = Fault(0, 0, where="setup", attempt=1)
    disturbed = longer(setting(1), stop_at=15, faults=(*AT_THE_END, again))
    job = run(disturbed)
    twin = run(dataclasses.replace(disturbed, faults=(), strategy="DDPStrategy"))
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert resumed_steps(job) == {0: 0, 2: 15}
    assert how_it_ended(job) == how_it_ended(twin)


def test_no_gradients_are_lost_of_a_window_that_a_schedule_accumulates_and_a_checkpoint_divides(run):
    disturbed = Setting(
        faults=(Fault(1, 12),), validate=True, callbacks=("accumulation",), trainer={"val_check_interval": 3},
        checkpoint=AFTER_A_VALIDATION,
    )  # fmt: skip
    job = run(disturbed)
    twin = run(dataclasses.replace(disturbed, faults=(), strategy="DDPStrategy"))
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert resumed_steps(job) == {0: 0, 1: 11}
    assert how_it_ended(job) == how_it_ended(twin)
