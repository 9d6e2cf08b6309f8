"""Whatever a script does to its own process, a failure of another rank costs one restart and no rank."""

from __future__ import annotations

import pytest

from tests.harness.process.oracle import assert_no_process_left
from tests.harness.process.workers.surroundings import BEFORE, CASE, INSIDE, LOSES_DESCRIPTORS

from .conftest import Launch

ALWAYS = (
    "has_a_default_timeout",
    "reaps_all_children",
    "has_no_descriptors",
    "has_no_poll",
    "has_a_full_disk",
    "with_default_signals",
    "with_calls_that_the_kernel_restarts",
    "at_the_depth_limit",
    "without_descriptors",
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.nightly] * (case not in ALWAYS)) for case in (*BEFORE, *INSIDE)]
)
def test_a_restart_costs_no_rank(prepare: Launch, case: str) -> None:
    job = prepare(world=2).start("tests.harness.process.workers.surroundings", **{CASE: case}).finish()
    assert job.codes == {0: 0, 1: 0}, [job.errors(rank)[-2000:] for rank in job.codes]
    assert {line["iteration"] for line in job.lines("enter")} == {0, 1}
    assert [line["result"] for line in job.lines("done")] == [2, 2]
    assert [line["lost"] for line in job.events("restart")] == [[], []]
    assert_no_process_left(job)


def test_the_cases_that_always_run_exist() -> None:
    assert set(ALWAYS) <= {*BEFORE, *INSIDE}


def test_a_rank_that_closes_all_descriptors_is_lost_and_nothing_is_written_to_its_files(prepare: Launch) -> None:
    case = {CASE: LOSES_DESCRIPTORS}
    job = prepare(world=2).start("tests.harness.process.workers.surroundings", **case).finish(30)
    assert (job.codes[0], job.codes[1] != 0) == (0, True), [job.errors(rank)[-2000:] for rank in job.codes]
    assert "has closed descriptor" in job.errors(1)
    files = list((job.directory / "checkpoints").iterdir())
    assert len(files) == 100
    assert not any(file.stat().st_size for file in files), "written to"
    assert_no_process_left(job)
