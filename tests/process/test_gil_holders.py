"""A rank whose main thread keeps the interpreter's lock while another one fails."""

from __future__ import annotations

import pytest

from tests.harness.process.oracle import assert_no_process_left

from .conftest import Launch

WORKER = "tests.harness.process.workers.gil_holder"


@pytest.mark.parametrize("call", ["regex", "sleep"])
def test_the_others_do_not_wait_for_its_soft_timeout(prepare: Launch, call: str) -> None:
    """None of its own threads runs: its monitor process reaches it. The soft timeout is a minute, the hard one 90 s."""
    job = prepare(world=2)
    job.start(WORKER, NVRX_TEST_HOLD=call).finish(45)
    assert_no_process_left(job)
    assert job.codes == {0: 0, 1: 0}
    assert {line["initial_rank"]: line["world_size"] for line in job.lines("enter", iteration=1)} == {0: 2, 1: 2}
    injected = job.lines("fails")[0]["at"]
    assert max(line["at"] for line in job.lines("enter", iteration=1)) - injected < 30


def test_a_section_that_holds_the_lock_is_waited_for(prepare: Launch) -> None:
    """It is not interrupted, and its rank is not ended before the hard timeout."""
    job = prepare(world=2)
    job.start(WORKER, NVRX_TEST_HOLD="deaf").finish(60)
    assert_no_process_left(job)
    assert job.codes == {0: 0, 1: 0}, job.errors(1)
    assert {line["initial_rank"]: line["world_size"] for line in job.lines("enter", iteration=1)} == {0: 2, 1: 2}
