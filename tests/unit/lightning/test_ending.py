"""Whether a training has come to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nvrx_lightning.monitoring.ending import Ending

LIMITLESS = Ending(returned=True, steps=5, max_steps=-1, epochs=1, max_epochs=-1, terminated=False, trial=False)


@pytest.mark.parametrize(
    ("ending", "final"),
    [
        (LIMITLESS, True),
        (replace(LIMITLESS, max_epochs=None), True),
        (replace(LIMITLESS, returned=False), False),
        (replace(LIMITLESS, trial=True), False),
        (replace(LIMITLESS, terminated=True), False),
        (replace(LIMITLESS, terminated=True, max_epochs=None), False),
        (replace(LIMITLESS, terminated=True, max_steps=6, max_epochs=2), False),
        (replace(LIMITLESS, terminated=True, max_steps=5), True),
        (replace(LIMITLESS, terminated=True, max_epochs=1), True),
    ],
)
def test_an_end_is_final_unless_the_training_was_interrupted(ending: Ending, final: bool) -> None:
    assert ending.is_final() is final
