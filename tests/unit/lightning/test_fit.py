"""What a fit does between two attempts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nvrx_lightning.restart import fit as module
from nvrx_lightning.restart.fit import RestartableFit


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
        attempt=0,
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
