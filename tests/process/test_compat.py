"""Code that is written against nvidia-resiliency-ext runs unchanged under ft_launcher, with real processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

import nvrx_core
from tests.harness.process.launch import Launch, Start

OURS = f"+nvrx.{nvrx_core.__version__}"
HEARTBEATS = {"initial_rank_heartbeat_timeout": 60, "rank_heartbeat_timeout": 3, "safety_factor": 100}
SECTIONS = {
    "rank_section_timeouts": {"setup": 60, "step": 30, "checkpointing": 60}, "rank_out_of_section_timeout": 60,
    "initial_rank_heartbeat_timeout": None, "rank_heartbeat_timeout": None, "safety_factor": 1000,
}  # fmt: skip

FIT = {"initial_rank_heartbeat_timeout": 100, "rank_heartbeat_timeout": 5}


@pytest.fixture
def launch(launcher: Start) -> Start:
    def launch(worker: str, case: str = "", *options: str) -> Launch:
        return launcher(case, *options, worker=f"peers_{worker}.py")

    return launch


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of that name, which is installed."""
    package = tmp_path / "site" / "nvidia_resiliency_ext" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("__version__ = '0.6.0'\n")
    monkeypatch.syspath_prepend(package.parents[1])
    return str(package)


def said(job: Launch, event: str, **fields: Any) -> list[dict[str, Any]]:
    return [each for each in job.events if each["event"] == event and fields.items() <= each.items()]


def test_a_wrapped_training_restarts_in_its_processes(launch: Start) -> None:
    job = launch("inprocess")
    out, log = job.process.communicate(timeout=100)
    assert job.process.returncode == 0, log
    job.take(out)
    assert sorted(each["initial_rank"] for each in said(job, "enter", iteration=0, first=0)) == [0, 1]
    assert sorted(each["initial_rank"] for each in said(job, "enter", iteration=1)) == [0, 1]
    assert {each["first"] for each in said(job, "enter", iteration=1)} <= {2, 3}
    assert {(each["world"], each["mode"]) for each in said(job, "initialize")} == {(2, "ACTIVE")}
    done = said(job, "done")
    assert [each["finalized"] for each in done] == [[5], [5]]
    assert len({each["weight"] for each in done}) == 1
    assert all(each["version"].endswith(OURS) for each in done)
    states = [line.partition("state=")[2] for line in out.splitlines() if line.startswith("[NestedRestarter]")]
    assert states == ["initialize", "handling stage=starting", "handling stage=completed", "finalized"]


def config(folder: Path, settings: dict[str, Any]) -> str:
    path = folder / "ft.yaml"
    path.write_text(yaml.safe_dump({"fault_tolerance": settings}))
    return f"--ft-cfg-path={path}"


def test_a_rank_without_heartbeats_is_ended_and_the_job_restarts(launch: Start, tmp_path: Path) -> None:
    job = launch("monitored", "heartbeats", "--max-restarts=1", config(tmp_path, HEARTBEATS))
    code, log = job.finish(100)
    assert code == 0, log
    assert "is hung: no heartbeat" in log
    learned = [each["timeouts"] for each in said(job, "learned", cycle=1)]
    assert len(learned) == len(said(job, "done", cycle=1)) == 2
    assert all(each["were_calculated"] and each["subsequent"] > 1 for each in learned)


def test_sections_learn_their_timeouts_and_a_rank_ends_the_job(launch: Start, tmp_path: Path) -> None:
    job = launch("monitored", "sections", "--max-restarts=1", config(tmp_path, SECTIONS))
    code, log = job.finish(100)
    assert code == 93, log
    assert "trained enough" in log
    loaded = said(job, "loaded")
    assert [(each["cycle"], each["calculated"]) for each in loaded] == [(1, ["setup", "step"])] * 2


def test_workers_have_the_names_unless_they_are_not_wanted(launch: Start) -> None:
    job = launch("package")
    assert job.finish()[0] == 0
    assert [each["version"].endswith(OURS) for each in said(job, "whose")] == [True, True]
    code, log = launch("package", "", "--ft-compat-names=false").finish()
    assert code == 1
    assert "No module named 'nvidia_resiliency_ext'" in log


def test_an_installed_package_wins_in_workers(launch: Start, installed: str) -> None:
    job = launch("package")
    assert job.finish()[0] == 0
    assert [os.path.realpath(each["file"]) for each in said(job, "whose")] == [os.path.realpath(installed)] * 2


def test_a_fit_with_the_callback_goes_on_and_writes_its_flag(
    launch: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "finished"
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(flag))
    options = ("--nproc-per-node=1", "--max-restarts=1", config(tmp_path, FIT))
    job = launch("lightning", str(tmp_path / "run"), *options)
    code, log = job.finish(200)
    assert code == 0, log
    assert "is hung: " in log
    assert [(each["cycle"], each["step"], each["resumed"]) for each in said(job, "done")] == [(1, 12, True)]
    assert flag.exists()
