"""What the counters of the loops say: a rank is where its peers save a checkpoint, or the fit is over."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from nvrx_lightning.restart.loops import is_over, nothing_since_a_save


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
