"""Nothing that an iteration has made is alive when the next one begins, the first iteration included."""

from __future__ import annotations

import pytest

from tests.harness.process.workers.trainers import RESTARTS

from .conftest import Launch

WORKER = "tests.harness.process.workers.trainers"


@pytest.mark.parametrize("case", ["cyclic", "plain"])
def test_a_trainer_of_objects_that_refer_to_each_other_is_gone_after_each_restart(prepare: Launch, case: str) -> None:
    job = prepare(world=2).start(WORKER, NVRX_TEST_CASE=case).finish()
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    for rank in (0, 1):
        left = {line["iteration"]: line["alive"] for line in job.lines("left", initial_rank=rank)}
        assert left == {iteration: {} for iteration in range(RESTARTS + 1)}, rank
