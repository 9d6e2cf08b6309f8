"""A checkpoint may be saved in any hook: a fit goes on from it as the undisturbed one."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.harness.lightning.account import how_it_ended, resumed_steps, rows_of, trained_on, what_counted
from tests.harness.lightning.setting import Fault, Setting

BASE = Setting(validate=True, epoch_metrics=True, dropout=0.2, checkpoint=None, loggers=("csv",))
"""Two epochs of 10 steps, with a validation after each."""
HOOKS = {
    "on_fit_start": 0, "on_train_start": 0, "on_train_epoch_start": 10, "on_train_batch_start": 13,
    "on_train_batch_end": 13, "on_validation_start": 10, "on_validation_epoch_start": 10,
    "on_validation_batch_start": 10, "on_validation_batch_end": 10, "on_validation_epoch_end": 10,
    "on_validation_end": 10, "on_train_epoch_end": 10,
}  # fmt: skip
"""Each hook, and the step from which a fault in the second epoch resumes."""
IN_THE_EPOCH = {name: 6 for name in HOOKS if "validation" in name} | {
    "on_train_batch_start": 7,
    "on_train_epoch_start": 0,
}
"""The hooks in the middle of an epoch with a validation after each three batches."""
ALWAYS = {
    ("on_train_start", 13), ("on_train_epoch_start", 13), ("on_train_batch_start", 7), ("on_validation_end", 7),
    ("on_validation_batch_end", 13), ("on_validation_epoch_end", 7),
}  # fmt: skip
CASES = [(hook, 13) for hook in HOOKS] + [(hook, 7) for hook in IN_THE_EPOCH]


@pytest.mark.parametrize(
    ("hook", "step"), [pytest.param(*case, marks=[pytest.mark.nightly] * (case not in ALWAYS)) for case in CASES]
)
def test_a_fit_goes_on_from_a_checkpoint_of_any_hook(hook, step, run):
    trainer = {"val_check_interval": 3} if step == 7 else {}
    disturbed = dataclasses.replace(BASE, saves_in=hook, trainer=trainer, faults=(Fault(1, step),))
    job = run(disturbed)
    twin = run(dataclasses.replace(disturbed, faults=(), strategy="DDPStrategy"))
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert resumed_steps(job) == {0: 0, 1: (IN_THE_EPOCH if step == 7 else HOOKS)[hook]}
    assert how_it_ended(job) == how_it_ended(twin)
    assert trained_on(job) == trained_on(twin)
    assert what_counted(job) == what_counted(twin)
    assert [row for row in rows_of(job) if "nvrx/restarts" not in row] == rows_of(twin)
    assert "in the middle of a batch" not in job.errors(0)


def test_a_rank_that_fails_at_the_start_goes_on_from_the_checkpoint_that_its_peer_saves_then(run, undisturbed):
    at_the_start = Fault(1, 0, "raise during a write", where="train_start")
    disturbed = Setting(
        checkpoint=None, saves_in="on_train_epoch_start", dropout=0.2, io="slow", faults=(at_the_start,)
    )
    job = run(dataclasses.replace(disturbed, logs=True))
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert "attempt 1 of the fit begins from /" in job.errors(0)
    assert how_it_ended(job) == undisturbed(disturbed)
    assert "has no random states" not in job.errors(1)


def test_the_last_checkpoint_is_not_written_once_more_at_the_end_of_a_fit_that_resumed(run):
    last = {"every_n_train_steps": 5, "save_last": True}
    job = run(Setting(checkpoint=last, trainer={"max_steps": 18}, faults=(Fault(1, 17),)))
    assert resumed_steps(job) == {0: 0, 1: 15}
    assert torch.load(job.directory / "checkpoints" / "last.ckpt", weights_only=False)["global_step"] == 15


def test_a_validation_that_is_due_after_the_checkpoint_of_one_callback_is_saved_by_the_other(run):
    best = Setting(
        validate=True, best=True, trainer={"val_check_interval": 5}, faults=(Fault(1, 15, where="validation"),)
    )
    job = run(best)
    twin = run(dataclasses.replace(best, faults=(), strategy="DDPStrategy"))
    assert resumed_steps(job) == {0: 0, 1: 15}
    saved, expected = ({name for line in each.lines("fitted") for name in line["saved"]} for each in (job, twin))
    assert saved == expected
    assert "best-step=15.ckpt" in expected


@pytest.mark.parametrize(
    "hook", ["on_before_zero_grad", pytest.param("on_before_optimizer_step", marks=pytest.mark.nightly)]
)
def test_a_checkpoint_in_the_middle_of_a_batch_is_warned_of_and_repeats_the_batch(hook, run):
    """Without random numbers in the model, the weights are those of the undisturbed fit."""
    disturbed = Setting(checkpoint=None, saves_in=hook, faults=(Fault(1, 8), Fault(0, 13, attempt=1)))
    job = run(disturbed)
    twin = run(dataclasses.replace(disturbed, faults=(), strategy="DDPStrategy"))
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert how_it_ended(job) == how_it_ended(twin)
    assert job.errors(0).count(f"saved in the middle of a batch (in {hook})") == 1
    assert "on_train_batch_end" in job.errors(0)
