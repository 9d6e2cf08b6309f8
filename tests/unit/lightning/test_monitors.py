"""What follows a metric of this rank goes on as on this rank, and not as on rank 0, which has saved the checkpoint."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from nvrx_lightning.restart.monitors import Monitors

FAMILY = "lightning.pytorch"


class Follower:
    def __init__(self, best: float) -> None:
        self.state_key, self.best = type(self).__qualname__, [best]

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]


@pytest.fixture
def make(monkeypatch):
    """Makes a Trainer, with the best value that each of its followers has seen, and a learning rate."""
    kinds = {name: type(name, (Follower,), {}) for name in ("EarlyStopping", "ModelCheckpoint", "Other")}
    module = ModuleType(f"{FAMILY}.callbacks")
    vars(module).update(kinds)
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def make(best: float, rate: float, *, plateau: bool = True) -> Any:
        optimizer, scheduler = SimpleNamespace(param_groups=[{"lr": rate}]), Follower(best)
        trainer = type("Trainer", (SimpleNamespace,), {"__module__": FAMILY + ".trainer"})()
        trainer.callbacks, trainer.optimizers = [kind(best) for kind in kinds.values()], [optimizer]
        trainer.lr_scheduler_configs = [SimpleNamespace(scheduler=scheduler, reduce_on_plateau=plateau)]
        return trainer

    return make


def known(trainer: Any) -> tuple[float, float, list[float]]:
    scheduler = trainer.lr_scheduler_configs[0].scheduler
    return scheduler.best[0], trainer.optimizers[0].param_groups[0]["lr"], [each.best[0] for each in trainer.callbacks]


def test_schedules_and_callbacks_that_follow_a_metric_are_those_of_the_rank(make):
    mine, saved = make(4.0, 0.1), make(8.0, 0.1)
    monitors = Monitors.now(mine)
    mine.callbacks[0].best[0] = 5.0
    for _ in range(2):
        assert monitors.restore(saved) is None
        assert known(saved) == (4.0, 0.1, [4.0, 4.0, 8.0])
        saved.callbacks[0].best[0] = 6.0


def test_a_learning_rate_that_differs_from_the_checkpoints_is_told(make):
    saved = make(8.0, 0.1)
    assert Monitors.now(make(4.0, 0.05)).restore(saved) == (0.05, 0.1)
    assert known(saved)[1] == 0.05


def test_the_learning_rate_of_another_schedule_is_that_of_the_checkpoint(make):
    saved = make(8.0, 0.1, plateau=False)
    assert Monitors.now(make(4.0, 0.05, plateau=False)).restore(saved) is None
    assert known(saved)[:2] == (8.0, 0.1)


def test_a_rank_that_has_not_come_to_the_save_takes_the_files_of_its_peers(make):
    saved = make(8.0, 0.1)
    Monitors.now(make(4.0, 0.1)).before_a_save().restore(saved)
    assert known(saved) == (4.0, 0.1, [4.0, 8.0, 8.0])
