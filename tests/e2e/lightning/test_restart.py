"""A fit goes on after a fault as if there had been none: the weights of the undisturbed run, bit by bit."""

from __future__ import annotations

import dataclasses

import pytest

from tests.harness.lightning.account import how_it_ended, resumed_steps
from tests.harness.lightning.setting import Fault, Setting

EPOCHS = {"every_n_epochs": 1, "save_top_k": -1}
LAST_BATCH = {"every_n_train_steps": 10, "save_top_k": -1}
STEPS = {"every_n_train_steps": 5, "save_top_k": -1}


def raises(*at: tuple[int, int], where: str = "train") -> tuple[Fault, ...]:
    """A fault in each attempt, by rank and step."""
    return tuple(Fault(rank=rank, step=step, where=where, attempt=number) for number, (rank, step) in enumerate(at))


CASES = {
    "no fault": (Setting(), ()),
    "from the end of an epoch": (Setting(faults=raises((1, 13)), checkpoint=EPOCHS), (10,)),
    "from the middle of an epoch": (Setting(faults=raises((1, 8))), (5,)),
    "from the middle of the second epoch": (Setting(faults=raises((0, 17))), (15,)),
    "without a checkpoint": (Setting(faults=raises((1, 13)), checkpoint=None), (0,)),
    "without a checkpoint, with a layer that setup makes": (
        Setting(faults=raises((1, 8)), checkpoint=None, late_layer=True), (0,),
    ),
    "in the first step": (Setting(faults=raises((0, 0)), batch_norm=True), (0,)),
    "in setup": (Setting(faults=(Fault(1, 0, where="setup"),), batch_norm=True), (0,)),
    "after a batch": (Setting(faults=(Fault(1, 13, where="batch_end"),)), (10,)),
    "before a batch": (Setting(faults=(Fault(1, 13, where="batch_start"),)), (10,)),
    "at the end of an epoch": (Setting(faults=(Fault(1, 0, where="epoch_end"),)), (10,)),
    "on both ranks": (Setting(faults=(Fault(0, 13), Fault(1, 13))), (10,)),
    "three times": (Setting(faults=raises((1, 3), (0, 8), (1, 17))), (0, 5, 15)),
    "while forward is replaced": (
        Setting(faults=(Fault(1, 7, where="before_forward"),), batch_norm=True, checkpoint=None), (0,),
    ),
    "in validation": (
        Setting(faults=(Fault(1, 10, where="validation"),), batch_norm=True, validate=True), (10,),
    ),
    "with dropout": (Setting(faults=raises((1, 8), (0, 17)), dropout=0.3), (5, 15)),
    "with dropout, from the end of an epoch": (
        Setting(faults=raises((1, 13)), dropout=0.3, checkpoint=EPOCHS, validate=True), (10,),
    ),
    "with dropout, from the last batch of an epoch": (
        Setting(faults=raises((1, 13)), dropout=0.3, checkpoint=LAST_BATCH), (10,),
    ),
    "with dropout, from the last batch of an epoch, with validation": (
        Setting(faults=raises((1, 13)), dropout=0.3, checkpoint=LAST_BATCH, validate=True), (10,),
    ),
    "with dropout, without a checkpoint": (Setting(faults=raises((1, 13)), dropout=0.3, checkpoint=None), (0,)),
    "with workers": (Setting(faults=raises((1, 8), (0, 17)), loader={"num_workers": 2}), (5, 15)),
    "with workers, from the end of an epoch": (
        Setting(faults=raises((1, 13)), loader={"num_workers": 1}, checkpoint=EPOCHS), (10,),
    ),
    "with persistent workers": (
        Setting(faults=raises((1, 13)), loader={"num_workers": 1, "persistent_workers": True}), (10,),
    ),
    "with accumulated gradients": (
        Setting(faults=raises((1, 4)), trainer={"accumulate_grad_batches": 2}, checkpoint={"every_n_train_steps": 3}),
        (3,),
    ),
    "with several validations an epoch": (
        Setting(faults=raises((1, 13)), trainer={"val_check_interval": 3}, validate=True), (10,),
    ),
    "with max_steps": (Setting(faults=raises((1, 13)), trainer={"max_steps": 17, "max_epochs": -1}), (10,)),
    "with early stopping": (Setting(faults=raises((1, 13)), early_stopping=True), (10,)),
    "with a schedule for accumulated gradients": (
        Setting(faults=raises((1, 12)), callbacks=("accumulation",)), (10,),
    ),
    "with a schedule for accumulated gradients, from the middle of an epoch": (
        Setting(faults=raises((1, 12)), callbacks=("accumulation",), checkpoint={"every_n_train_steps": 4}), (12,),
    ),
    "with averaged weights and their schedule": (
        Setting(
            faults=(*raises((1, 17)), Fault(0, 27, attempt=1)), callbacks=("averaging",), batch_norm=True,
            trainer={"max_epochs": 3},
        ),
        (15, 25),
    ),
    "while the average's batch norms are measured": (
        Setting(faults=raises((1, 20)), callbacks=("averaging",), batch_norm=True, checkpoint=None), (0,),
    ),
    "with mixed precision": (Setting(faults=raises((1, 13)), amp=True), (10,)),
    "with manual optimization": (Setting(faults=raises((1, 13)), manual=True), (10,)),
    "with asynchronous writes": (Setting(faults=raises((1, 13)), io="async"), (10,)),
    "with a link to the last": (
        Setting(faults=raises((1, 13)), checkpoint={"every_n_train_steps": 5, "save_last": "link"}), (10,),
    ),
    "with one file that is written again": (
        Setting(faults=raises((1, 13)), checkpoint={**STEPS, "save_top_k": 0, "save_last": True}), (10,),
    ),
    "with a sampler of the user's": (Setting(faults=raises((1, 13)), data="own_sampler"), (10,)),
    "with batches of the user's": (Setting(faults=raises((1, 13)), data="own_batches"), (10,)),
    "with an order that is drawn": (Setting(faults=raises((1, 8), (0, 27)), data="drawn"), (5, 25)),
    "with a generator of the user's": (Setting(faults=raises((1, 8), (0, 27)), data="generator"), (5, 25)),
    "with a generator of the user's, without a checkpoint": (
        Setting(faults=raises((1, 13)), data="generator", checkpoint=None), (0,),
    ),
    "with a generator of the user's, from the end of an epoch": (
        Setting(faults=raises((1, 23)), data="generator", checkpoint=EPOCHS, loader={"num_workers": 1}), (20,),
    ),
    "with a loader that has a state of its own": (Setting(faults=raises((1, 8), (0, 13)), data="stateful"), (5, 10)),
    "with samples that the ranks cannot share": (Setting(faults=raises((1, 13)), samples=77), (10,)),
    "with the last batch left out": (Setting(faults=raises((1, 13)), samples=77, loader={"drop_last": True}), (10,)),
    "with a data module": (Setting(faults=raises((1, 8)), data="module"), (5,)),
    "with a loader for each epoch": (
        Setting(faults=raises((1, 17)), data="module", trainer={"reload_dataloaders_every_n_epochs": 1}), (15,),
    ),
    "beside the callback": (Setting(faults=raises((1, 13)), callback=True), (10,)),
    "with dropout, on a rank that fails before its save": (
        Setting(faults=(Fault(1, 10, "raise during a write", where="dump"),), io="slow", dropout=0.3), (10,),
    ),
    "during a write": (
        Setting(faults=(Fault(1, 5, "raise during a write", where="dump"),), io="slow"), (5,),
    ),
    "under a registered name, by default from memory": (Setting(faults=raises((1, 13)), strategy="name"), (13,)),
    "under in_process": (Setting(faults=raises((1, 13)), strategy="in_process"), (10,)),
    "with a checkpoint that is cut off": (Setting(faults=raises((1, 13)), spoil="cut"), (5,)),
    "with a checkpoint that is deleted": (Setting(faults=raises((1, 13)), spoil="delete"), (5,)),
    "with a checkpoint that one rank cannot load": (Setting(faults=raises((1, 13)), io="refusing"), (5,)),
    "never from a checkpoint": (Setting(faults=raises((1, 13)), options={"resume": None}), (0,)),
    "nothing is saved because of a fault": (
        Setting(faults=raises((1, 13)), checkpoint={**STEPS, "save_on_exception": True}), (10,),
    ),
}  # fmt: skip


NIGHTLY = {
    "from the end of an epoch",
    "without a checkpoint",
    "with a schedule for accumulated gradients",
    "with a generator of the user's, from the end of an epoch",
    "with a generator of the user's, without a checkpoint",
    "with an order that is drawn",
    "from the middle of the second epoch",
    "after a batch",
    "before a batch",
    "on both ranks",
    "with early stopping",
    "with max_steps",
    "with workers, from the end of an epoch",
    "with a link to the last",
    "with dropout, without a checkpoint",
    "with dropout, from the last batch of an epoch, with validation",
    "with a checkpoint that is deleted",
    "never from a checkpoint",
    "with a loader for each epoch",
    "with a data module",
    "with samples that the ranks cannot share",
    "under in_process",
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.nightly] * (case in NIGHTLY)) for case in CASES]
)
def test_the_weights_are_those_of_the_undisturbed_run(case, run, undisturbed):
    setting, resumed = CASES[case]
    job = run(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert [step for attempt, step in resumed_steps(job).items() if attempt][-len(resumed) :] == list(resumed)
    assert how_it_ended(job) == undisturbed(setting)
    assert {line["status"] for line in job.lines("fitted")} == {"TrainerStatus.FINISHED"}
    assert all(line["training"] for line in job.lines("seen"))
    assert not [name for line in job.lines("fitted") for name in line["saved"] if "step=13" in name]


@pytest.mark.parametrize("step", [13, 17, 24])
def test_layers_that_were_thawed_stay_so(step, run, undisturbed):
    """In one process: the gradients of layers that are thawed are not exchanged by DDP."""
    layers = Setting(callbacks=("finetuning",), batch_norm=True, samples=40, trainer={"max_epochs": 3})
    job = run(dataclasses.replace(layers, faults=raises((0, step))), world=1)
    assert job.codes == {0: 0}, job.errors(0)
    assert resumed_steps(job) == {0: 0, 1: step - step % 5}
    assert how_it_ended(job) == undisturbed(layers, world=1)
    assert "was frozen" not in job.errors(0)


def test_layers_that_ddp_does_not_synchronize_are_warned_of_once(run):
    layers = Setting(callbacks=("finetuning",), trainer={"max_epochs": 3}, faults=raises((0, 13)))
    job = run(layers)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    warning = "net.0.weight (and 1 more) was frozen when DistributedDataParallel was set up, and is trained now"
    assert job.errors(0).count(warning) == 1
