"""What a fit does between two attempts."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nvrx_lightning.restart import fit as module
from nvrx_lightning.restart.checkpoint import SavedCheckpoints
from nvrx_lightning.restart.fit import RestartableFit
from nvrx_lightning.restart.fit_warnings import FitWarnings
from nvrx_lightning.restart.job import Job, Start, gathered
from nvrx_lightning.restart.memory import FitMemory
from torch.distributed import HashStore


class RefusingScheduler:
    def state_dict(self) -> Any:
        raise RuntimeError("not now")


@pytest.fixture
def torn_down(monkeypatch) -> list[Any]:
    """The Trainers that were torn down."""
    trainers: list[Any] = []
    monkeypatch.setattr(module, "tear_down", lambda trainer, *_: trainers.append(trainer))
    monkeypatch.setattr(module, "nothing_since_a_save", lambda trainer: True)
    monkeypatch.setattr(module, "saved_at", lambda trainer: None)
    monkeypatch.setattr(module, "state_at", lambda trainer, point: trainer.scheduler.state_dict())
    return trainers


def ended(trainer: Any) -> Any:
    fit = object.__new__(RestartableFit)
    vars(fit).update(
        _trainer=trainer, _highest_step=0, _goes_on=True, _resumed=None, _stopped_after=7, _error=None, _family="",
        attempt=0, memory=FitMemory(trainer, "lightning.pytorch", on=False), _warnings=FitWarnings(trainer, ""),
    )  # fmt: skip
    return fit


def test_a_state_that_cannot_be_asked_for_does_not_keep_a_trainer_from_its_teardown(torn_down, caplog):
    trainer = SimpleNamespace(received_sigterm=False, global_step=3, scheduler=RefusingScheduler(), should_stop=False)
    loop = SimpleNamespace(epoch_loop=None)
    trainer.fit_loop = loop
    fit = ended(trainer)
    state: Any = object()
    assert fit(state) is state
    assert torn_down == [trainer]
    assert "RuntimeError: not now" in caplog.text
    assert fit._stopped_after is None


def test_an_attempt_that_ends_before_the_training_keeps_the_decision_to_stop(torn_down):
    fit = ended(SimpleNamespace(received_sigterm=False, global_step=0, fit_loop=SimpleNamespace(epoch_loop=None)))
    fit._goes_on, fit._resumed = False, {}
    fit(object())
    assert fit._stopped_after == 7


@pytest.mark.parametrize(
    ("local", "remote", "said"),
    [
        (
            [Path("run")],
            ["s3://bucket/run"],
            "not looked for in remote folders (s3://bucket/run). To go on",
        ),
        ([Path("run")], [], "before its first checkpoint"),
        ([], [], "no ModelCheckpoint has a dirpath of its own"),
    ],
)
def test_a_job_that_finds_no_checkpoint_of_its_own_is_told_why(local, remote, said, caplog):
    fit = object.__new__(RestartableFit)
    fit._log = logging.getLogger("nvrx_lightning")
    with caplog.at_level(logging.INFO, "nvrx_lightning"):
        fit._tell_restart({"Slurm": "Slurm job 7"}, [], [], (local, remote))
    assert "Slurm has started this job again (Slurm job 7)" in caplog.text
    assert said in caplog.text


@pytest.mark.parametrize("another_has_looked", [False, True])
def test_each_attempt_looks_for_the_jobs_checkpoints_until_a_rank_knows_them(
    another_has_looked, tmp_path, monkeypatch, caplog
):
    """An attempt may end before rank 0 has looked; the launcher of another node may count the restarts."""
    job = Job(frozenset({"launch x"}), 1)
    path = tmp_path / "a.ckpt"
    torch.save({"global_step": 5, "optimizer_states": [], module.CHECKPOINT_KEY: {"job": job.written()}}, path)
    monkeypatch.setattr(module, "checkpoint_folders", lambda *_: ([tmp_path], []))
    monkeypatch.setattr(module.environment, "earlier_ids", lambda: {"the launcher": "launch y"})
    monkeypatch.setattr(module.environment, "restarted_ids", dict)
    store, launcher = HashStore(), {"the launcher": "launch x"}
    gathered(store, 1, 2, Start(another_has_looked, launcher, {}))
    fit = object.__new__(RestartableFit)
    vars(fit).update(
        _call=SimpleNamespace(store=store), _has_looked=False, _trainer=None, _family="", _job=job,
        saved=SavedCheckpoints(), _log=logging.getLogger("nvrx_lightning"),
    )  # fmt: skip
    with caplog.at_level(logging.INFO, "nvrx_lightning"):
        assert fit._look_for_own(0, 2) is not another_has_looked
    assert [each.path for each in fit.saved.newest()] == [str(path)] * (not another_has_looked)
    assert ("the launcher has started this job again" in caplog.text) is not another_has_looked
