"""What follows a checkpoint takes place once, as in the undisturbed run: validations, ends of epochs, schedulers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.harness.lightning.account import how_it_ended, resumed_steps, what_happened
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
CASES["a validation that a fault has ended"] = (setting(10, where="validation_last"), 10)
PLATEAUS = {
    "a metric of the training": (dataclasses.replace(setting(17, max_epochs=4), plateau="loss_epoch"), 15),
    "a metric of the validation": (dataclasses.replace(setting(23, max_epochs=4), plateau="val_loss"), 20),
    "at the end of an epoch": (dataclasses.replace(setting(23, epochs=True, max_epochs=4), plateau="val_loss"), 20),
}


ALWAYS = {
    "a validation that a fault has ended",
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
    assert how_it_ended(job) == how_it_ended(twin)
