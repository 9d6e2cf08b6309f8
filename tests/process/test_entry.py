"""What entry costs, counted: import of torch and of the wrapper is the user's, and all of it comes before."""

from __future__ import annotations

from tests.harness.process.oracle import assert_nothing_left

from .conftest import Launch

BROKEN = "tests.harness.process.workers.broken_call"
ENTERING = "tests.harness.process.workers.entering"


def test_entry_imports_nothing(prepare: Launch) -> None:
    job = prepare(world=2).start(ENTERING).finish()
    assert_nothing_left(job)
    told = {line["initial_rank"]: line for line in job.lines("entered")}
    assert {rank: line["imported"] for rank, line in told.items()} == {0: [], 1: []}
    assert all("encodings.idna" not in line["before"] for line in told.values()), "the template has hidden it"


def test_the_others_go_on_at_once_without_a_rank_whose_call_ends_before_its_first_iteration(prepare: Launch) -> None:
    """Not only when the lease of its monitor process has run out, after 50 s here."""
    job = prepare(world=2).start(BROKEN).finish()
    assert job.codes == {0: 0, 1: 1}
    (entered,) = job.lines("entered")
    assert (entered["initial_rank"], entered["world_size"]) == (0, 1)
    assert "injected in the wrapper" in job.errors(1)
    assert_nothing_left(job)
