"""A checkpoint counts if it names an id of the job that is started again, and the number of the fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nvrx_lightning import environment
from nvrx_lightning.families import family_of
from nvrx_lightning.restart.job import Job, Start, gathered
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


def test_the_first_rank_reads_what_all_ranks_know_of_their_start():
    store, own, other = (
        HashStore(),
        Start(False, {"the launcher": "a"}, {}),
        Start(True, {"Slurm": "b"}, {"Slurm": "b"}),
    )
    assert gathered(store, 1, 2, other) is None
    assert gathered(store, 0, 2, own) == [own, other]


def test_only_who_has_started_the_job_before_names_it(monkeypatch):
    assert environment.job_ids() == environment.restarted_ids() == {}
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("SLURM_JOB_ID", "7"), ("SLURM_RESTART_COUNT", "0")):
        monkeypatch.setenv(name, value)
    assert set(environment.job_ids()) == {"the launcher", "Slurm"}
    assert environment.restarted_ids() == {}
    assert set(environment.earlier_ids()) == {"the launcher"}  # torchrun counts per agent, and no change of membership
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert environment.restarted_ids() == {"Slurm": "Slurm job 7"}
    assert set(environment.earlier_ids()) == {"the launcher", "Slurm"}
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


def a_process(proc: Path, pid: int, parent: int, start: int, *, worker: bool) -> None:
    """A process as proc shows it."""
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (a ) b) S {parent}{' 0' * 17} {start} 0")
    (proc / str(pid) / "environ").write_bytes(b"A=1\0TORCHELASTIC_RESTART_COUNT=0\0" if worker else b"A=1\0")


def a_host(proc: Path, namespace: str = "pid:[1]") -> Path:
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("boot\n")
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to(namespace)
    return proc


def test_an_agent_that_is_the_first_process_of_its_container_is_told_from_others(tmp_path):
    ids = []
    for number, (start, namespace) in enumerate(((700, "pid:[1]"), (800, "pid:[1]"), (700, "pid:[2]"))):
        proc = a_host(tmp_path / str(number), namespace)
        a_process(proc, 1, 0, start, worker=False)
        a_process(proc, 7, 1, 900, worker=True)
        assert environment.agent_of(1, proc) == environment.agent_of(7, proc)
        ids.append(environment.agent_of(7, proc))
    assert ids[0] == "boot-pid:[1]-1-700"
    assert len(set(ids)) == 3


def test_where_no_agent_is_known_there_is_no_id(tmp_path, monkeypatch):
    proc = a_host(tmp_path)
    a_process(proc, 1, 0, 700, worker=True)
    assert environment.agent_of(1, proc) == ""
    assert environment.agent_of(5, proc) == ""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setattr(environment, "agent_of", lambda parent: "")
    assert environment.job_ids() == {}


def test_a_strategy_of_fabric_is_told_what_to_do_instead():
    kind = type("DDPStrategy", (), {"__module__": "lightning.fabric.strategies.ddp"})
    with pytest.raises(TypeError, match=r"Lightning Fabric.*nvrx_core\.inprocess\.Wrapper"):
        family_of(kind)
