"""Which parts of a training are sections, by the names that Lightning gives them."""

from __future__ import annotations

import pytest
from nvrx_lightning.monitoring.sections import PHASES, SECTIONS, phase_of, section_of, sections_in_use


@pytest.mark.parametrize(
    ("action", "section", "phase"),
    [
        ("run_training_batch", "step", ""),
        ("save_checkpoint", "checkpointing", "checkpointing"),
        ("[_TrainingEpochLoop].train_dataloader_next", "data", "data"),
        ("[_EvaluationLoop].val_next", "", ""),
        ("[Strategy]DDPStrategy.training_step", "", "forward"),
        ("[Strategy]DDPStrategy.backward", "", "backward"),
        ("[LightningModule]Model.on_before_optimizer_step", "", "optimizer"),
        ("[Callback]ModelCheckpoint{'monitor': None, 'mode': 'min'}.on_before_optimizer_step", "", ""),
        ("[LightningModule]Model.training_step", "", ""),
        ("run_training_epoch", "", ""),
    ],
)
def test_an_action_is_a_section_a_phase_or_neither(action: str, section: str, phase: str) -> None:
    assert section_of(action) == section
    assert phase_of(action) == phase
    assert {section, phase} <= SECTIONS | set(PHASES) | {""}


def test_all_sections_are_in_use_without_a_timeout_for_the_time_without_one() -> None:
    assert sections_in_use({"step"}, None) == SECTIONS


def test_a_section_without_a_timeout_does_not_hide_a_hang_between_sections() -> None:
    assert sections_in_use({"step"}, 60.0) == {"setup", "step", "checkpointing"}
    assert sections_in_use({"data", "mine"}, 60.0) == {"setup", "step", "checkpointing", "data"}
