"""What trainers ask of the wrapper: their settings work, and nothing that an iteration has made outlives it."""

from __future__ import annotations

import signal

import pytest

from tests.harness.process.job import Template
from tests.harness.process.oracle import assert_nothing_lost, restart
from tests.harness.process.workers.trainers import RESTARTS

from .conftest import Launch

WORKER = "tests.harness.process.workers.trainers"
SLOW: dict[str, float] = {
    "heartbeat_interval": 30, "heartbeat_timeout": 60, "barrier_timeout": 120, "completion_timeout": 120,
    "monitor_process_interval": 1, "monitor_thread_interval": 1, "last_call_wait": 1, "soft_timeout": 60,
    "hard_timeout": 90, "termination_grace_time": 1,
}  # fmt: skip
"""The defaults of a trainer for large language models, seconds: longer than those of `Wrapper`."""


@pytest.fixture
def template(live_template: Template) -> Template:
    """Its ranks have optimizers, whose first one imports torch._dynamo."""
    return live_template


@pytest.mark.parametrize("case", ["cyclic", "plain"])
def test_objects_that_refer_to_each_other_are_gone_after_each_restart(prepare: Launch, case: str) -> None:
    """Those of the first iteration, and what an exception refers to, included."""
    job = prepare(world=2).start(WORKER, NVRX_TEST_CASE=case).finish()
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    for rank in (0, 1):
        left = {line["iteration"]: line["alive"] for line in job.lines("left", initial_rank=rank)}
        assert left == {iteration: {} for iteration in range(RESTARTS + 1)}, rank


def test_slow_settings_restart_and_lose_a_rank_without_waiting_for_a_lease(launch: Launch) -> None:
    job = launch({(1, 0, 3): "exception", (2, 1, 3): "kill"}, collective=True, wrapper=SLOW).finish()
    expected = restart("EXCEPTION", by=[1]), restart("TERMINATED", by=[2], lost=[2])
    assert_nothing_lost(job, *expected, codes={2: -signal.SIGKILL})
    took = [line["marks"]["entered"] - line["marks"]["occurred"] for line in job.events("restart")]
    assert max(took) < SLOW["heartbeat_interval"] / 2
