"""FaultToleranceCallback in real trainers, under the real launcher and without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nvrx_lightning.monitoring.sections import phase_of, section_of

from tests.harness.lightning.run import Run, alone, launched
from tests.harness.process.job import Template

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "lightning_callback.py"
PEERS_CONFIGURATION = ("--ft-rank-section-timeouts", "setup:60,step:77", "--ft-rank-out-of-section-timeout", "60")


def test_two_ranks_report_their_training(tmp_path: Path, lightning_template: Template) -> None:
    run = launched(tmp_path, "reporting.py", template=lightning_template)
    assert run.code == 0, run.log
    assert [each["step"] for each in run.said("fitted")] == [16, 16]
    assert not any(each["watched"] for each in run.said("fitted"))
    assert all(each["same_profiler"] for each in run.said("fitted"))
    for page in run.said("page"):
        completed = {name: count for name, (count, measured) in page["sections"].items() if measured}
        assert completed == {"setup": 1, "data": 16, "step": 16, "validation": 2, "checkpointing": 2}
        assert page["sections"]["teardown"] == [1, False]
        assert page["heartbeats"] > 16


MOVED = "Lightning names its profiler's actions otherwise: update nvrx_lightning/monitoring/sections.py"


def test_lightning_announces_what_the_sections_and_phases_come_from(
    tmp_path: Path, lightning_template: Template
) -> None:
    """The canary: these names are Lightning's own affair. The user's profiler hears them, too."""
    run = launched(tmp_path, "reporting.py", *PEERS_CONFIGURATION, workers=1, template=lightning_template)
    assert run.code == 0, run.log
    (actions,) = run.said("actions")
    assert actions["open"] == []
    assert {section_of(name) for name in actions["names"]} == {"", "data", "step", "checkpointing"}, MOVED
    assert {phase_of(name) for name in actions["names"]} == {
        "", "data", "forward", "backward", "optimizer", "checkpointing"
    }, MOVED  # fmt: skip
    _assert_nothing_hides_a_hang(run)


def _assert_nothing_hides_a_hang(run: Run) -> None:
    """An open section without a timeout would suspend the configured timeout of the time without a section."""
    (page,) = run.said("page")
    opened = {name: count for name, (count, _) in page["sections"].items()}
    assert opened == {"setup": 1, "step": 16 + 2 * 3, "checkpointing": 2}


def test_a_plain_run_is_left_alone(tmp_path: Path) -> None:
    run = alone(tmp_path, "reporting.py", NVRX_TEST_LIGHTNING="pytorch_lightning")
    assert run.code == 0, run.log
    assert run.said("page") == []
    (fitted,) = run.said("fitted")
    assert (fitted["step"], fitted["watched"], fitted["same_profiler"]) == (16, False, True)
    assert run.log.count("FaultToleranceCallback does nothing in this run") == 1
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.nightly
def test_a_step_costs_at_most_a_hundredth_of_ten_milliseconds() -> None:
    command = [sys.executable, BENCHMARK, "--steps", "4000"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One rank; the other name of Lightning."""
    folder = tmp_path_factory.mktemp("endings")
    run = launched(folder, "endings.py", workers=1, NVRX_TEST_LIGHTNING="pytorch_lightning")
    assert run.code == 0, run.log
    return run


@pytest.mark.parametrize(
    ("case", "how", "flag"),
    [
        ("max_steps", "returned", True),
        ("max_epochs", "returned", True),
        ("max_time", "returned", True),
        ("should_stop", "returned", True),
        ("early_stopping", "returned", True),
        ("nothing_to_do", "returned", True),
        ("max_steps sections", "returned", True),
        ("max_epochs again", "returned", True),
        ("max_epochs off", "returned", False),
        ("exception", "ValueError", False),
        ("exception again", "ValueError", False),
        ("exit_0", "SystemExit", False),
        ("sigterm", "SIGTERMException", False),
        ("sigterm_and_stop", "SIGTERMException", False),
        ("trial", "returned", False),
        ("evaluation", "returned", False),
    ],
)
def test_the_finished_flag_says_that_no_further_job_is_needed(endings: Run, case: str, how: str, flag: bool) -> None:
    (ended,) = endings.said("ended", case=case)
    assert (ended["ended"], ended["flag"], ended["watched"]) == (how, flag, False)


def test_a_flag_that_is_asked_for_needs_no_variable(endings: Run) -> None:
    (asked,) = endings.said("asked")
    assert asked["files"] == ["ft_finished", "ft_timeouts.json"]


@pytest.mark.nightly  # tests/docs/test_lightning_examples.py has the same, with an example
def test_a_rank_that_hangs_in_backward_is_ended_and_the_job_goes_on(
    tmp_path: Path, lightning_template: Template
) -> None:
    options = ("--max-restarts", "1", "--ft-rank-section-timeouts", "step:4")
    run = launched(
        tmp_path, "surviving.py", *options, template=lightning_template, NVRX_TEST_FAULTS="1:5:backward=hang_sleep"
    )
    assert run.code == 0, run.log
    assert "is hung: section 'step' open for 4." in run.log
    assert [each["resumes"] for each in run.said("begins", cycle=1)] == [True, True]
    assert [(each["cycle"], each["step"]) for each in run.said("fitted")] == [(1, 16), (1, 16)]


def test_a_policy_ends_the_job_and_the_log_has_the_exception(tmp_path: Path, lightning_template: Template) -> None:
    flag = tmp_path / "finished"
    run = launched(
        tmp_path, "surviving.py", "--max-restarts", "3", workers=1, template=lightning_template,
        NVRX_TEST_FAULTS="0:3:optimizer=exception",
        NVRX_TEST_ACTION="ShutdownWorkload", FAULT_TOL_FINISHED_FLAG_FILE=str(flag),
    )  # fmt: skip
    assert run.code == 93, run.log
    assert [each["error"] for each in run.said("judged", rank=0)] == ["injected"]
    assert "rank 0 has asked for ShutdownWorkload: by policy" in run.log
    assert flag.exists()
    assert {each["cycle"] for each in run.events} == {0}


@pytest.mark.nightly
def test_a_policy_that_continues_leaves_the_job_to_its_launcher(tmp_path: Path, lightning_template: Template) -> None:
    run = launched(
        tmp_path, "surviving.py", "--max-restarts", "1", template=lightning_template,
        NVRX_TEST_FAULTS="0:3:forward=exception", NVRX_TEST_ACTION="Continue",
    )  # fmt: skip
    assert run.code == 0, run.log
    assert "InjectedFault: injected" in run.log
    assert [each["step"] for each in run.said("fitted", cycle=1)] == [16, 16]


def test_timeouts_are_learned_from_the_first_job_on_and_kept_for_the_next(
    tmp_path: Path, lightning_template: Template
) -> None:
    first = launched(tmp_path, "learning.py", template=lightning_template)
    assert first.code == 0, first.log
    for start, end in zip(first.said("start"), first.said("end"), strict=True):
        assert (start["learned"], start["heartbeat"]) == ([], False)
        assert end["learned"] == ["checkpointing", "data", "step", "validation"]
        assert (end["out_of_section"], end["heartbeat"], end["initial"], end["enforced"]) == (True, True, 3600.0, 40.0)
    file = json.loads((tmp_path / "ft_timeouts.json").read_text())
    assert [path.name for path in tmp_path.glob(".ft_timeouts*")] == []

    second = launched(
        tmp_path, "learning.py", "--ft-rank-section-timeouts", "step:77", workers=1, template=lightning_template
    )
    assert second.code == 0, second.log
    for start, end in zip(second.said("start"), second.said("end"), strict=True):
        assert start["learned"] == ["checkpointing", "data", "validation"]
        assert start["sections"]["data"] == file["timeouts"]["section"]["section"]["data"]
        assert (start["sections"]["step"], end["sections"]["step"]) == (77.0, 77.0)
        assert end["learned"] == ["checkpointing", "data", "setup", "validation"]
        assert end["initial"] < 3600.0
    assert first.said("end")[0]["sections"] == first.said("end")[1]["sections"]
