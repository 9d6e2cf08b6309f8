"""A job that cannot go on without a rank ends with the exit code of that rank on all ranks: job scripts read it."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_no_process_left

from .conftest import Launch

WORKER = "tests.harness.process.workers.peers_exit"
night = pytest.mark.nightly
WAYS = {
    "exit_3": (3, 3),
    "exit_with_a_text": (1, 1),
    "exit_without_python": (5, 5),
    "kill": (-signal.SIGKILL, 137),
    "term": (-signal.SIGTERM, 143),
    "handled_term": (143, 143),
    "ctrl_c": (-signal.SIGINT, 130),
    "own_end": (1, 1),
}
"""The code of the rank that leaves, and that of the others."""


def run(prepare: Launch, world: int, **case: Any) -> Job:
    job = prepare(world=world).start(WORKER, NVRX_TEST_CASE=json.dumps(case)).finish(30)
    assert_no_process_left(job)
    return job


@pytest.mark.parametrize(
    ("needs", "how"),
    [
        *(("initialize", how) for how in WAYS),
        *(pytest.param("assignment", how, marks=[night] * (how not in ("exit_3", "kill"))) for how in WAYS),
    ],
)
def test_the_ranks_that_give_up_end_with_the_code_of_the_rank_that_has_left(
    prepare: Launch, needs: str, how: str
) -> None:
    job = run(prepare, 3, how=how, needs=needs, leaving=[1])
    left, others = WAYS[how]
    assert job.codes == {0: others, 1: left, 2: others}, [job.errors(rank)[-2000:] for rank in range(3)]
    for rank in (0, 2):
        assert ("RestartAbort" if how == "own_end" else f"leaves with exit code {others}: ") in job.errors(rank)


@pytest.mark.parametrize("needs", ["initialize", pytest.param("assignment", marks=night)])
@pytest.mark.parametrize("where", ["initialize", "entry-before", "function", "finally", "barrier-before"])
def test_two_ranks_that_leave_together_end_with_the_same_code_whoever_is_first(
    prepare: Launch, where: str, needs: str
) -> None:
    for leaving in ([0, 1], [1, 0]):
        job = run(prepare, 2, how="exit_3", needs=needs, leaving=leaving, where=where)
        assert job.codes == {0: 3, 1: 3}, [job.errors(rank)[-2000:] for rank in range(2)]
