"""FaultToleranceCallback with a strategy that restarts in the processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.lightning.run import alone, launched
from tests.harness.process.job import Template

COUNTS = {"setup": 1, "teardown": 1}
"""Sections of the last iteration: the page counts anew in each."""


def test_a_long_validation_run_is_no_hang(tmp_path: Path, lightning_template: Template) -> None:
    """Neither pings nor steps are expected while there are none."""
    run = alone(tmp_path, "in_process.py", template=lightning_template, NVRX_TEST_SOFT="1", NVRX_TEST_BUSY="2.5")
    assert run.code == 0, run.log
    (page,) = run.said("page")
    assert (page["iteration"], page["sections"]) == (0, {})


def test_a_hung_rank_restarts_in_its_process_and_is_watched_again(tmp_path: Path, lightning_template: Template) -> None:
    options = ("--ft-rank-section-timeouts", "step:4")
    flag = {"FAULT_TOL_FINISHED_FLAG_FILE": str(tmp_path / "finished")}
    run = launched(
        tmp_path, "in_process.py", *options, template=lightning_template,
        NVRX_TEST_FAULTS="1:5:backward=hang_sleep", **flag,
    )  # fmt: skip
    assert run.code == 0, run.log
    assert "section 'step' open for 4." in run.log
    assert "SIGKILL" not in run.log
    assert {each["cycle"] for each in run.events} == {0}
    assert [(each["step"], each["watched"]) for each in run.said("fitted")] == [(16, False), (16, False)]
    assert run.said("fitted", rank=0, flag=True)
    for page in run.said("page"):
        assert page["iteration"] == 1
        assert page["sections"].items() >= COUNTS.items()
        assert 0 < page["sections"]["step"] <= 16
    assert all(each["judged_by_call"] for each in run.said("watched"))


@pytest.mark.parametrize("hook", ["an earlier callback", "setup", "configure_model"])
def test_a_fault_before_the_training_begins_is_no_failure_of_the_job(
    tmp_path: Path, lightning_template: Template, hook: str
) -> None:
    """The fit restarts in its processes: the launcher gets no error, and the user's policy is not consulted."""
    run = launched(tmp_path, "in_process.py", template=lightning_template, NVRX_TEST_FAILS_IN=hook)
    assert run.code == 0, run.log
    assert f"fault in {hook}" in run.log
    assert "while a restart was prepared" not in run.log
    assert run.said("consulted") == []
    assert [page["iteration"] for page in run.said("page")] == [1, 1]
    assert [each["step"] for each in run.said("fitted")] == [16, 16]


def test_ten_restarts_leave_nothing_of_the_callback_behind(tmp_path: Path, lightning_template: Template) -> None:
    phases = ("forward", "backward", "optimizer", "data", "checkpointing")
    places = [(step % 2, step, phases[step // 2 % 5]) for step in range(2, 12)]
    faults = ", ".join(f"{rank}:{step}:{phase}=exception" for rank, step, phase in places if phase != "checkpointing")
    faults += ", 0:8:checkpointing=exception"
    run = launched(tmp_path, "in_process.py", template=lightning_template, NVRX_TEST_FAULTS=faults)
    assert run.code == 0, run.log
    assert "not watched" not in run.log
    for page, left in zip(run.said("page"), run.said("left"), strict=True):
        assert page["iteration"] >= 8
        assert page["restarts"] == list(range(1, page["iteration"] + 1))
        assert left["objects"] == {"Training": 1, "PhaseProfiler": 1, "ProgressReporter": 1}
