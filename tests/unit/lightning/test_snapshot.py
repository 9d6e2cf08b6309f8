"""Callbacks begin anew, or go on from a checkpoint, and what they set as an epoch began is set again."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from nvrx_lightning.restart.snapshot import (
    TrainerSnapshot,
    _begin_anew,
    _LoopSnapshot,
    _state_of,
    checkpoint_folders,
    checkpoint_saves,
    epoch_settings,
    go_on_averaging,
    unsynchronized,
    use_checkpoint_saves,
    use_epoch_settings,
)

FAMILY = "lightning.pytorch"


class Loop:
    """A loop whose counter cannot be copied while a fault of another rank interrupts the restart."""

    def __init__(self) -> None:
        self.results, self.counter = [0.5], Counter()


class Counter:
    interrupted = False

    def __deepcopy__(self, memo: Any) -> Counter:
        if Counter.interrupted:
            raise RuntimeError
        return Counter()


def test_a_loop_has_all_its_attributes_when_its_restoration_is_interrupted(monkeypatch):
    kinds = {"loops.progress._BaseProgress": Counter, "loops.loop._Loop": Loop}
    monkeypatch.setattr("nvrx_lightning.restart.snapshot.lookup", lambda family, name: kinds[name])
    loop: Any = Loop()
    snapshot = _LoopSnapshot(loop, FAMILY)
    loop.results, loop.more = [], True
    monkeypatch.setattr(Counter, "interrupted", True)
    with pytest.raises(RuntimeError):
        snapshot.restore()
    assert {"results", "counter"} <= vars(loop).keys()
    monkeypatch.setattr(Counter, "interrupted", False)
    snapshot.restore()
    assert vars(loop).keys() == {"results", "counter"}
    assert loop.results == [0.5]


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


def test_a_checkpoint_callback_gets_its_initial_state_for_the_folder_that_its_setup_has_chosen():
    class Checkpoints:
        def __init__(self) -> None:
            self.dirpath: str | None = None
            self.best: dict[str, float] = {}

        def state_dict(self) -> dict[str, Any]:
            return {"dirpath": self.dirpath, "best": dict(self.best)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            assert state["dirpath"] == self.dirpath, "The dirpath has changed"
            self.best = state["best"]

    callback = Checkpoints()
    state = _state_of(callback)
    callback.dirpath, callback.best = "version_0", {"a.ckpt": 1.0}
    _begin_anew(callback, state)
    assert callback.best == {}


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


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_part_that_torch_jit_has_compiled_keeps_its_constants():
    trainer = trainer_of(1)
    trainer.lightning_module[1] = torch.jit.script(torch.nn.BatchNorm1d(3))
    use_epoch_settings(trainer, epoch_settings(trainer))
    assert trainer.lightning_module[1].track_running_stats


def test_layers_that_are_frozen_for_one_optimizer_only_are_not_frozen():
    trainer = trainer_of(1)
    weight = trainer.lightning_module[0].weight.requires_grad_(False)
    trainer.lightning_module._param_requires_grad_state = {weight: True}
    assert epoch_settings(trainer)["frozen"] == []


class Saves:
    """A checkpoint callback."""

    def __init__(self, name: str) -> None:
        self.state_key = f"{type(self).__qualname__} {name}"
        self._last_global_step_saved, self._last_checkpoint_saved = 0, ""
        self._defer_save_until_validation = False
        self.saves: list[Any] = []

    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        self.saves.append(checkpoint_saves(trainer))
        self._last_global_step_saved, self._last_checkpoint_saved = trainer.global_step, filepath


def saving_trainer(*names: str) -> Any:
    return SimpleNamespace(callbacks=[object(), *map(Saves, names)], global_step=3)


def test_the_callback_that_has_saved_the_checkpoint_knows_its_save_and_another_one_its_own():
    trainer = saving_trainer("steps", "best")
    _, steps, best = trainer.callbacks
    checkpoint_saves(trainer)
    best._save_checkpoint(trainer, "best-3.ckpt")
    trainer.global_step = 4
    best._defer_save_until_validation = True
    steps._save_checkpoint(trainer, "steps-4.ckpt")
    resumed = saving_trainer("steps", "best")
    use_checkpoint_saves(resumed, 4, steps.saves[0])
    known = [(each._last_global_step_saved, each._last_checkpoint_saved) for each in resumed.callbacks[1:]]
    assert known == [(4, "steps-4.ckpt"), (3, "best-3.ckpt")]
    assert [each._defer_save_until_validation for each in resumed.callbacks[1:]] == [False, True]
    assert type(resumed.callbacks[1]).__qualname__ == "Saves"


def test_a_checkpoint_that_does_not_name_its_callback_counts_as_saved_by_each():
    trainer = saving_trainer("steps", "best")
    use_checkpoint_saves(trainer, 4, {})
    assert [each._last_global_step_saved for each in trainer.callbacks[1:]] == [4, 4]


def test_an_attempt_does_not_save_again_what_an_earlier_one_would_have():
    """Else a rank that has had no part in that one does not take part in what it asks."""
    trainer = SimpleNamespace(callbacks=[Saves("steps")])
    snapshot = TrainerSnapshot.__new__(TrainerSnapshot)
    vars(snapshot).update(_trainer=trainer, _callbacks=(), _averages=(), _checkpoints=[(trainer.callbacks[0], {})])
    use_checkpoint_saves(trainer, 4, {}, frozenset({"steps-8.ckpt"}))
    assert trainer.callbacks[0].nvrx_saves_again == {"steps-8.ckpt"}
    snapshot._restore_callbacks()
    assert trainer.callbacks[0].nvrx_saves_again is None


@pytest.fixture
def averaging(monkeypatch) -> Any:
    """A callback that averages weights, in the place of Lightning's."""

    class StochasticWeightAveraging:
        def __init__(self, state: dict[str, Any] | None, *, initialized: bool = False) -> None:
            self._scheduler_state, self._initialized, self._latest_update_epoch = state, initialized, 1
            self.epochs: list[int] = []

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            self.epochs.append(trainer.fit_loop.epoch_progress.current.completed)

    module = ModuleType(f"{FAMILY}.callbacks")
    module.StochasticWeightAveraging = StochasticWeightAveraging  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"{FAMILY}.callbacks", module)
    return StochasticWeightAveraging


def test_averages_that_had_begun_get_their_schedule_for_the_epoch_in_which_they_averaged_last(averaging):
    begun, not_begun, made = averaging({"step": 2}), averaging(None), averaging({"step": 2}, initialized=True)
    progress = SimpleNamespace(current=SimpleNamespace(completed=2))
    trainer = SimpleNamespace(
        callbacks=[begun, not_begun, made, object()], fit_loop=SimpleNamespace(epoch_progress=progress),
        lightning_module=None,
    )  # fmt: skip
    go_on_averaging(trainer, FAMILY)
    assert (begun.epochs, not_begun.epochs, made.epochs) == ([1], [], [])
    assert progress.current.completed == 2


def test_frozen_layers_of_a_model_that_ddp_has_wrapped_are_found(monkeypatch):
    module = ModuleType(f"{FAMILY}.strategies")
    module.DDPStrategy = type("DDPStrategy", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"{FAMILY}.strategies", module)
    trainer = trainer_of(1)
    trainer.lightning_module[0].requires_grad_(False)
    for strategy, world, expected in (
        (module.DDPStrategy(), 2, ["0.weight", "0.bias"]), (module.DDPStrategy(), 1, []), (object(), 2, []),
    ):  # fmt: skip
        trainer.strategy, trainer.world_size = strategy, world
        assert unsynchronized(trainer, FAMILY) == expected


class Saving:
    def __init__(self, dirpath: Any) -> None:
        self.dirpath = dirpath


def test_folders_that_are_not_looked_in_are_told_from_those_on_a_file_system(monkeypatch):
    monkeypatch.setattr("nvrx_lightning.restart.snapshot.lookup", lambda family, name: Saving)
    named = [Saving(each) for each in (Path("/a"), None, "s3://bucket/run", "file:///b")]
    trainer = SimpleNamespace(callbacks=[*named, object()])
    assert checkpoint_folders(trainer, FAMILY) == ([Path("/a"), Path("/b")], ["s3://bucket/run"])
