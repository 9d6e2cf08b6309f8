"""Faults at drawn points and instants in trainings on megatron-core from memory: no step is lost, and no bit differs.

`python -m tests.harness.megatron.campaign` runs one of these trainings again, by its variant and seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.megatron.campaign import VARIANTS, Campaign
from tests.harness.process.job import Template

FAULTS = int(os.environ.get("NVRX_TEST_FAULTS", "2000"))
"""Of the long run."""
SHORT = ("tensor parallel", "data parallel, with spare ranks", "distributed optimizer")


@pytest.fixture
def campaign(megatron: Template, tmp_path: Path) -> Iterator[Campaign]:
    yield Campaign(megatron, tmp_path)
    megatron.sweep()


@pytest.mark.parametrize("variant", SHORT)
def test_faults_at_drawn_instants_cost_no_step_and_no_bit(variant: str, campaign: Campaign) -> None:
    campaign.run(variant, 1, 8)
    assert not campaign.violations, "\n".join(campaign.violations)
    assert campaign.faults >= 6, campaign.figure()
    assert not VARIANTS[variant].kills or campaign.counts["kills"], campaign.figure()


@pytest.mark.nightly
def test_many_faults_in_trainings_of_all_kinds_cost_no_step_and_no_bit(
    campaign: Campaign, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in campaign.runs(FAULTS, 30, seed=1000):
        pass
    with capsys.disabled():
        print(f"\n{campaign.figure()}")
    assert not campaign.violations, "\n".join(campaign.violations)
