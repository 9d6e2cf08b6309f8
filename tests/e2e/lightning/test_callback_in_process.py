"""FaultToleranceCallback with a strategy that restarts in the processes."""

from __future__ import annotations

from pathlib import Path

from tests.harness.lightning.run import alone, launched

COUNTS = {"setup": 1, "teardown": 1}
"""Sections of the last iteration: the page counts anew in each."""


def test_a_long_validation_run_is_no_hang(tmp_path: Path) -> None:
    """Neither pings nor steps are expected while there are none."""
    run = alone(tmp_path, "in_process.py", NVRX_TEST_SOFT="1", NVRX_TEST_BUSY="2.5")
    assert run.code == 0, run.log
    (page,) = run.said("page")
    assert (page["iteration"], page["sections"]) == (0, {})


def test_a_hung_rank_restarts_in_its_process_and_is_watched_again(tmp_path: Path) -> None:
    options = ("--ft-rank-section-timeouts", "step:4")
    run = launched(tmp_path, "in_process.py", *options, NVRX_TEST_FAULTS="1:5:backward=hang_sleep")
    assert run.code == 0, run.log
    assert "section 'step' open for 4." in run.log
    assert "SIGKILL" not in run.log
    assert {each["cycle"] for each in run.events} == {0}
    assert [(each["step"], each["watched"]) for each in run.said("fitted")] == [(16, False), (16, False)]
    for page in run.said("page"):
        assert page["iteration"] == 1
        assert page["sections"].items() >= COUNTS.items()
        assert 0 < page["sections"]["step"] <= 16
    assert all(each["judged_by_call"] for each in run.said("watched"))


def test_a_policy_is_not_asked_for_a_fault_that_is_survived(tmp_path: Path) -> None:
    run = launched(tmp_path, "in_process.py", NVRX_TEST_FAULTS="0:5:optimizer=exception")
    assert run.code == 0, run.log
    assert "this training is not watched" not in run.log
    assert [each["iteration"] for each in run.said("page")] == [1, 1]
