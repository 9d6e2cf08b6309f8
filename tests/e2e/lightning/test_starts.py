"""However the ranks were started, a fit goes on; and what follows a fit in the same process works."""

from __future__ import annotations

import dataclasses

import pytest

from tests.harness.lightning.account import how_it_ended, resumed_steps, trained_on
from tests.harness.lightning.setting import Fault, Setting

DISTURBED = Setting(faults=(Fault(1, 13),))


def torchrun(rank: int) -> dict[str, str | None]:
    """What torchrun sets."""
    return {
        "TORCHELASTIC_RUN_ID": "run", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "False",
    }  # fmt: skip


def slurm(rank: int) -> dict[str, str | None]:
    """What srun sets, and no RANK."""
    return {
        "RANK": None, "WORLD_SIZE": None, "LOCAL_RANK": None, "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0", "SLURM_JOB_ID": "1234",
        "SLURM_JOB_NAME": "train", "SLURM_NNODES": "1", "LOCAL_WORLD_SIZE": "2",
    }  # fmt: skip


@pytest.mark.parametrize("starter", [torchrun, slurm])
def test_a_fit_goes_on_however_it_was_started(starter, start, undisturbed):
    job = start(DISTURBED, each=starter).finish(60)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert resumed_steps(job) == {0: 0, 1: 10}
    assert how_it_ended(job) == undisturbed(DISTURBED)


def test_lightning_starts_the_ranks_and_its_observer_kills_no_survivor(start_script):
    """Lightning's observer looks every 5 s, and the survivors of the loss train longer than that."""
    faults = (Fault(1, 8, "kill"),)
    job = start_script(Setting(faults=faults, step_seconds=0.3, samples=96)).finish(120)
    assert job.codes == {0: 0}, job.errors(0)
    assert resumed_steps(job) == {0: 0, 1: 5}
    assert set(trained_on(job)[0]) == set(range(96))
    assert {line["initial_rank"] for line in job.lines("fitted")} == {0, 2}


def test_fit_validate_and_fit_again(run):
    faults = (Fault(1, 8), Fault(1, 25))
    job = run(dataclasses.replace(DISTURBED, faults=faults, then=("validate", "fit", "test"), validate=True))
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    ends = [line for line in job.lines("fitted") if line["initial_rank"] == 0]
    assert [(line["step"], line["epoch"]) for line in ends] == [(20, 2), (20, 2), (30, 3), (30, 3)]
    assert len({line["weights"] for line in job.lines("fitted")[-2:]}) == 1


def test_after_a_loss_validation_and_another_fit_use_the_ranks_that_are_left(run):
    job = run(Setting(faults=(Fault(0, 8, "kill"),), then=("validate", "fit")), world=3)
    ends = [line for line in job.lines("fitted") if line["initial_rank"] == 1]
    assert [line["epoch"] for line in ends] == [2, 2, 3]
    assert {line["world"] for line in job.lines("fitted")} == {2}
