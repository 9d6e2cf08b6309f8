"""What entry costs, counted: import of torch and of the wrapper is the user's, and all of it comes before."""

from __future__ import annotations

from tests.harness.process.oracle import assert_nothing_left

from .conftest import Launch

ENTERING = "tests.harness.process.workers.entering"


def test_entry_imports_nothing(prepare: Launch) -> None:
    job = prepare(world=2).start(ENTERING).finish()
    assert_nothing_left(job)
    told = {line["initial_rank"]: line for line in job.lines("entered")}
    assert {rank: line["imported"] for rank, line in told.items()} == {0: [], 1: []}
    assert all("encodings.idna" not in line["before"] for line in told.values()), "the template has hidden it"
