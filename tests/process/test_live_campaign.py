"""Faults at drawn points and instants in trainings that go on from memory: no step is lost, and no bit differs.

`python -m tests.harness.process.live_campaign` runs one of these trainings again, by its variant and seed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harness.process.job import Template
from tests.harness.process.live_campaign import VARIANTS, Campaign

FAULTS = int(os.environ.get("NVRX_TEST_FAULTS", "10000"))
"""Of the long run."""


@pytest.fixture
def campaign(live_template: Template, tmp_path: Path) -> Campaign:
    return Campaign(live_template, tmp_path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_faults_at_drawn_instants_cost_no_step_and_no_bit(variant: str, campaign: Campaign) -> None:
    campaign.run(variant, 1, 30)
    assert not campaign.violations, "\n".join(campaign.violations)
    assert campaign.faults >= 20, campaign.figure()
    assert not VARIANTS[variant].kills or campaign.counts["kills"], campaign.figure()


@pytest.mark.nightly
def test_many_faults_in_trainings_of_all_kinds_cost_no_step_and_no_bit(
    campaign: Campaign, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in campaign.runs(FAULTS, 40, seed=1000):
        pass
    with capsys.disabled():
        print(f"\n{campaign.figure()}")
    assert not campaign.violations, "\n".join(campaign.violations)
