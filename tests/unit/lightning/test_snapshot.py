"""Callbacks of the user begin anew, and what they set as an epoch began is set again."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import torch
from nvrx_lightning.restart.snapshot import _begin_anew, _state_of, epoch_settings, use_epoch_settings


class Average:
    """A callback that has a state from its first step on."""

    def __init__(self, value: float | None) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {} if self.value is None else {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state.get("value")


def test_a_state_that_the_attempt_made_goes():
    callback = Average(3.0)
    _begin_anew(callback, {})
    assert callback.value is None


def test_the_initial_state_comes_back():
    callback = Average(3.0)
    _begin_anew(callback, {"value": 1.0})
    assert callback.value == 1.0


def test_a_callback_that_does_not_take_its_initial_state_is_named(caplog):
    class Strict(Average):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.value = state["value"]

    callback = Strict(3.0)
    with caplog.at_level(logging.ERROR, "nvrx_lightning"):
        _begin_anew(callback, {})
    assert callback.value == 3.0
    assert "Strict does not take its initial state" in caplog.text


def test_a_callback_without_a_state_is_left_alone():
    class Plain(Average):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError

    _begin_anew(Plain(None), {})


def test_a_callback_that_has_no_state_before_its_setup_is_left_as_it_is(caplog):
    class Late(Average):
        def state_dict(self) -> dict[str, Any]:
            raise AttributeError("ema")

    callback = Late(3.0)
    with caplog.at_level(logging.WARNING, "nvrx_lightning"):
        _begin_anew(callback, _state_of(callback))
    assert callback.value == 3.0
    assert "Late has no state before the fit" in caplog.text


def trainer_of(accumulated: int) -> Any:
    module: Any = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    module._param_requires_grad_state = {}
    return SimpleNamespace(lightning_module=module, accumulate_grad_batches=accumulated)


def test_layers_are_frozen_again_or_thawed_and_batches_accumulate():
    before, after = trainer_of(4), trainer_of(1)
    before.lightning_module[0].requires_grad_(False)
    after.lightning_module[1].requires_grad_(False).track_running_stats = False
    settings = epoch_settings(before)
    use_epoch_settings(after, settings)
    assert epoch_settings(after) == settings
    assert [each.requires_grad for each in after.lightning_module.parameters()] == [False] * 2 + [True] * 4
    assert (after.accumulate_grad_batches, after.lightning_module[1].track_running_stats) == (4, True)


def test_layers_that_are_frozen_for_one_optimizer_only_are_not_frozen():
    trainer = trainer_of(1)
    weight = trainer.lightning_module[0].weight.requires_grad_(False)
    trainer.lightning_module._param_requires_grad_state = {weight: True}
    assert epoch_settings(trainer)["frozen"] == []
