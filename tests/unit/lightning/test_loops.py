"""What the counters of the loops say: a rank is where its peers save a checkpoint, or the fit is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nvrx_lightning.restart.loops import finishing_epochs, is_over, nothing_since_a_save
from nvrx_lightning.restart.save_point import SavePoint


@pytest.mark.parametrize(
    ("ready", "processed", "training", "hook", "expected"),
    [
        (3, 3, True, "on_train_batch_end", True),
        (3, 3, False, "on_validation_start", True),
        (3, 2, True, "training_step", False),
        (0, 0, True, "on_train_start", True),
        (0, 0, True, "on_train_epoch_start", True),
        (0, 0, True, None, False),
        (0, 0, False, "on_train_start", False),
    ],
)
def test_a_rank_between_its_batches_has_the_state_of_a_save(ready, processed, training, hook, expected):
    progress = SimpleNamespace(current=SimpleNamespace(ready=ready, processed=processed))
    trainer = SimpleNamespace(
        training=training, lightning_module=SimpleNamespace(_current_fx_name=hook),
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress)),
    )  # fmt: skip
    assert nothing_since_a_save(trainer) is expected


@pytest.mark.parametrize(
    ("epochs", "max_epochs", "max_steps", "expected"),
    [
        (2, 3, -1, False),
        (3, 3, -1, True),
        (3, -1, -1, False),
        (3, None, 20, False),
        (2, -1, 18, True),
        (0, 0, -1, True),
    ],
)
def test_a_fit_is_over_when_a_limit_is_reached(epochs, max_epochs, max_steps, expected):
    progress = SimpleNamespace(current=SimpleNamespace(processed=epochs))
    loop = SimpleNamespace(epoch_progress=progress, max_epochs=max_epochs, max_steps=max_steps)
    assert is_over(SimpleNamespace(fit_loop=loop, global_step=18, should_stop=False)) is expected


@pytest.mark.parametrize("can_stop", [True, False])
def test_a_fit_that_has_decided_to_stop_is_over_once_its_minimum_is_reached(can_stop):
    progress = SimpleNamespace(current=SimpleNamespace(processed=1))
    loop = SimpleNamespace(epoch_progress=progress, max_epochs=3, max_steps=-1, _can_stop_early=can_stop)
    assert is_over(SimpleNamespace(fit_loop=loop, global_step=6, should_stop=True)) is can_stop


class Loop:
    """A fit loop that has loaded a checkpoint, and records how it finds itself when it sets up its data."""

    def __init__(self) -> None:
        progress = SimpleNamespace(ready=2, started=1)
        self.trainer = SimpleNamespace(accumulate_grad_batches=1)
        self.epoch_progress = SimpleNamespace(total=progress, current=progress)
        self.epoch_loop = SimpleNamespace(_should_accumulate=lambda: self.trainer.accumulate_grad_batches > 1)
        self.epoch_loop.restarting = self._restarting = self._loaded_from_state_dict = True
        self._combined_loader: Any = None
        self._should_reload_train_dl = False
        self.seen: list[tuple[int, bool]] = []

    def setup_data(self) -> None:
        self.seen.append((self.trainer.accumulate_grad_batches, self._restarting))
        self._combined_loader = object()


def loop_from(point: SavePoint, **attributes: Any) -> Any:
    loop = finishing_epochs(Loop)()
    vars(loop).update(attributes, nvrx_exactly=True, nvrx_saved_at=point)
    loop.setup_data()
    return loop


def test_the_data_is_set_up_with_the_accumulation_at_the_save_which_a_scheduler_sets_later():
    loop = loop_from(SavePoint.VALIDATION_END, nvrx_accumulated=4)
    assert loop.seen == [(4, True)]
    assert loop.trainer.accumulate_grad_batches == 1
    assert not hasattr(loop.epoch_loop, "nvrx_pending")  # the batches of the window are repeated


def test_a_loader_loads_its_state_before_the_epoch_is_begun_anew():
    loop = loop_from(SavePoint.EPOCH_START)
    assert loop.seen == [(1, True)]
    assert (loop._restarting, loop.epoch_loop.restarting) == (False, False)
