"""A checkpoint counts if it names an id of the job that is started again, and the number of the fit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from nvrx_lightning import environment
from nvrx_lightning.families import family_of
from nvrx_lightning.restart.job import Job, gathered_ids
from torch.distributed import HashStore

VARIABLES = (
    "NVRX_LAUNCH_ID",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_RESTART_COUNT",
)


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_checkpoint_of_another_job_or_of_another_fit_does_not_count():
    written = Job(frozenset({"a"}), 1).joined({"b"}).written()
    job = Job(frozenset({"b", "c"}), 1)
    assert job.refusal(written, {"b", "c"}) == ""
    assert job.refusal(written, {"c"}) == "of another job"
    assert job.refusal(None, {"b"}) == "which names no job"
    assert "of fit 1 of this job" in Job(job.ids, 2).refusal(written, {"b"})


def test_the_first_rank_reads_the_ids_of_all():
    store = HashStore()
    assert gathered_ids(store, 1, 2, ["b"], reads=False) == {"b"}
    assert gathered_ids(store, 0, 2, ["a", "b"], reads=True) == {"a", "b"}


def test_only_who_has_started_the_job_before_names_it(monkeypatch):
    assert environment.job_ids() == environment.restarted_ids() == {}
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("SLURM_JOB_ID", "7"), ("SLURM_RESTART_COUNT", "0")):
        monkeypatch.setenv(name, value)
    assert set(environment.job_ids()) == {"the launcher", "Slurm"}
    assert environment.restarted_ids() == {}
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert environment.restarted_ids() == {"Slurm": "Slurm job 7"}
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert set(environment.restarted_ids()) == {"the launcher", "Slurm"}
    monkeypatch.setenv("NVRX_LAUNCH_ID", "x")
    assert environment.job_ids()["the launcher"] == "launch x"


def test_a_script_between_agent_and_worker_does_not_change_the_job():
    """The worker's parent is the agent, or a shell with the worker's variables."""
    program = "from nvrx_lightning import environment; print(environment.job_ids()['the launcher'])"
    ours = {**os.environ, "TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "0"}
    direct = [sys.executable, "-c", program]
    wrapped = ["sh", "-c", '"$0" -c "$1"; true', sys.executable, program]
    ids = {
        subprocess.run(each, env=ours, capture_output=True, text=True, check=True).stdout for each in (direct, wrapped)
    }
    assert len(ids) == 1
    assert ids.pop().startswith("run run of agent ")


def test_a_strategy_of_fabric_is_told_what_to_do_instead():
    kind = type("DDPStrategy", (), {"__module__": "lightning.fabric.strategies.ddp"})
    with pytest.raises(TypeError, match=r"Lightning Fabric.*nvrx_core\.inprocess\.Wrapper"):
        family_of(kind)
