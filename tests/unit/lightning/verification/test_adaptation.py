"""A Trainer is made small, and with it the intervals at which it saves; its files go into a folder."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvrx_lightning.verification import adaptation
from nvrx_lightning.verification.adaptation import redirect, saves_checkpoints, scale_down


class ModelCheckpoint:
    """The attributes of Lightning's."""

    def __init__(
        self, every_n_train_steps: int = 0, every_n_epochs: int = 0, train_time_interval: timedelta | None = None,
        *, save_top_k: int = 1, save_last: bool | None = None, dirpath: str | None = None,
    ) -> None:  # fmt: skip
        self._every_n_train_steps, self._every_n_epochs = every_n_train_steps, every_n_epochs
        self._train_time_interval, self.dirpath = train_time_interval, dirpath
        self.save_top_k, self.save_last = save_top_k, save_last


class OnExceptionCheckpoint:
    def __init__(self, dirpath: str) -> None:
        self.dirpath = dirpath


KINDS = {f"callbacks.{kind.__name__}": kind for kind in (ModelCheckpoint, OnExceptionCheckpoint)}


@pytest.fixture(autouse=True)
def family(monkeypatch):
    monkeypatch.setattr(adaptation, "family_of", lambda kind: "")
    monkeypatch.setattr(adaptation, "lookup", lambda family, name: KINDS[name])


def trainer_of(*callbacks: Any, **options: Any) -> Any:
    given = {
        "limit_train_batches": 1.0, "limit_val_batches": 1.0, "val_check_interval": 1.0, "log_every_n_steps": 50,
        "check_val_every_n_epoch": 1, "accumulate_grad_batches": 1, "loggers": [], **options,
    }  # fmt: skip
    return SimpleNamespace(fit_loop=SimpleNamespace(max_epochs=100, min_epochs=None), callbacks=callbacks, **given)


@pytest.mark.parametrize(
    ("options", "steps", "epochs"),
    [
        ({"every_n_epochs": 10}, 0, 1),
        ({"every_n_epochs": 3}, 0, 1),
        ({"every_n_epochs": 2}, 0, 2),
        ({"every_n_train_steps": 1000}, 3, 0),
        ({"every_n_train_steps": 4}, 4, 0),
        ({"train_time_interval": timedelta(minutes=10)}, 3, 0),
    ],
)
def test_each_way_to_save_saves_before_the_last_epoch_ends(options, steps, epochs):
    saved = ModelCheckpoint(**options)
    changed = scale_down(trainer_of(saved), 3, 6)
    assert (saved._every_n_train_steps, saved._every_n_epochs, saved._train_time_interval) == (steps, epochs, None)
    (name,) = options
    shrinks = options[name] not in (2, 4)
    assert any(each.startswith(f"{name} ") for each in changed) is shrinks


def test_steps_of_accumulated_batches_are_fewer():
    saved = ModelCheckpoint(every_n_train_steps=6)
    scale_down(trainer_of(saved, accumulate_grad_batches=3), 3, 6)
    assert saved._every_n_train_steps == 1


@pytest.mark.parametrize(("every", "expected"), [(5, 1), (3, 1), (2, 2), (1, 1), (None, None)])
def test_validations_take_place_before_the_last_epoch(every, expected):
    trainer = trainer_of(check_val_every_n_epoch=every)
    scale_down(trainer, 3, 6)
    assert trainer.check_val_every_n_epoch == expected


def test_a_callback_that_is_to_save_nothing_saves_nothing():
    assert saves_checkpoints(trainer_of(ModelCheckpoint()))
    assert not saves_checkpoints(trainer_of())
    assert not saves_checkpoints(trainer_of(ModelCheckpoint(save_top_k=0)))
    assert saves_checkpoints(trainer_of(ModelCheckpoint(save_top_k=0, save_last=True)))


def test_what_a_fit_writes_goes_to_the_folder(tmp_path):
    failed, named, wandb = OnExceptionCheckpoint("mine"), ModelCheckpoint(dirpath="mine"), SimpleNamespace()
    wandb._save_dir, wandb._wandb_init = ".", {"dir": "."}
    redirect(trainer_of(failed, named, loggers=[wandb]), tmp_path)
    assert {Path(failed.dirpath).parent, Path(str(named.dirpath)).parent} == {tmp_path}
    assert wandb._save_dir == wandb._wandb_init["dir"] == str(tmp_path / "logs-0")
