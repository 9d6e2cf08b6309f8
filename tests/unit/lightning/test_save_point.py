"""Where a checkpoint was saved follows from the counters, and in a validation from the hook."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nvrx_lightning.restart.save_point import SavePoint, save_point


def counters(ready: int, started: int, processed: int, completed: int) -> Any:
    return SimpleNamespace(ready=ready, started=started, processed=processed, completed=completed)


RUNNING, ENDED = counters(2, 2, 1, 1), counters(8, 8, 8, 8)


@pytest.mark.parametrize(
    ("epoch", "batch", "point"),
    [
        (counters(0, 0, 0, 0), counters(0, 0, 0, 0), SavePoint.EPOCH_START),
        (counters(2, 1, 1, 1), ENDED, SavePoint.EPOCH_START),
        (counters(2, 2, 2, 1), ENDED, SavePoint.EPOCH_END),
        (RUNNING, counters(4, 3, 3, 3), SavePoint.BATCH_START),
        (RUNNING, counters(4, 4, 3, 3), SavePoint.IN_BATCH),
        (RUNNING, counters(4, 4, 4, 3), SavePoint.BATCH_END),
        (RUNNING, counters(4, 4, 4, 4), SavePoint.ELSEWHERE),
    ],
)
def test_a_save_in_the_training(epoch, batch, point):
    assert save_point(epoch, batch, validating=False, hook=None) is point


@pytest.mark.parametrize(
    ("hook", "point"),
    [
        ("on_validation_start", SavePoint.VALIDATION),
        ("on_validation_epoch_end", SavePoint.VALIDATION),
        (None, SavePoint.VALIDATION),
        ("on_validation_end", SavePoint.VALIDATION_END),
        ("on_validation_model_train", SavePoint.VALIDATION_END),
    ],
)
def test_a_save_in_a_validation(hook, point):
    assert save_point(RUNNING, ENDED, validating=True, hook=hook) is point


def test_a_point_of_another_version_is_resumed_from_as_lightning_does():
    assert SavePoint("of another version") is SavePoint.ELSEWHERE
