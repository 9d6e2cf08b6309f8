"""Faults at random instants, of all kinds, in fits that go on from memory: no step is lost, and no bit differs.

`python -m tests.harness.lightning.campaign` runs one of these fits again, by its variant and seed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harness.lightning.campaign import Campaign
from tests.harness.process.job import Template

FAULTS = int(os.environ.get("NVRX_TEST_FAULTS", "2000"))
"""Of the long run."""


@pytest.fixture
def campaign(lightning_template: Template, tmp_path: Path) -> Campaign:
    return Campaign(lightning_template, tmp_path)


@pytest.mark.parametrize("variant", ["ddp", "sharded", "reserves"])
def test_faults_at_random_instants_cost_no_step_and_no_bit(variant, campaign):
    campaign.run(variant, 1, 12)
    assert not campaign.violations, "\n".join(campaign.violations)
    assert campaign.faults, "of those that are drawn for an instant, some come too late"


@pytest.mark.nightly
def test_many_faults_in_fits_of_all_kinds_cost_no_step_and_no_bit(campaign, capsys):
    for _ in campaign.runs(FAULTS, 15, seed=1000):
        pass
    with capsys.disabled():
        print(f"\n{campaign.figure()}")
    assert not campaign.violations, "\n".join(campaign.violations)
