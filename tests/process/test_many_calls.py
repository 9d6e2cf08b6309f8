"""Wrapped calls one after the other in one process, as a trainer's fit, validate, fit."""

from __future__ import annotations

import signal

import pytest

from tests.harness.process.oracle import assert_no_process_left
from tests.harness.process.workers.many_calls import DIES, HOOKS, RAISES
from tests.harness.process.workers.record import HELD

from .conftest import Launch
from .test_store_host import STORE_LOST

WORKER = "tests.harness.process.workers.many_calls"


@pytest.mark.parametrize(("calls", "store"), [(8, True), (20, False)], ids=["store outside", "store in rank 0"])
def test_many_calls_restart_lose_a_rank_and_leave_nothing(prepare: Launch, calls: int, store: bool) -> None:
    job = prepare(world=3, store=store).start(WORKER, NVRX_TEST_CALLS=str(calls)).finish(60)
    assert job.codes == {0: 0, 1: 0, 2: -signal.SIGKILL}, job.errors(0)
    sizes = [3.0 if call < DIES else 2.0 for call in range(calls)]
    for rank in (0, 1):
        done = job.lines("done", initial_rank=rank)
        assert [line["result"] for line in done] == sizes
        for line in done[1:]:  # the first call loads what stays
            grown = {name: line["after"][name] - line["before"][name] for name in HELD}
            assert max(grown.values()) <= 0, (line["call"], grown)
        assert [line["hook"] for line in done] == ["first_hook"] * HOOKS + ["second_hook"] * (calls - HOOKS)
    restarted = {line["call"] for line in job.lines("fit", initial_rank=0) if line["iteration"] == 1}
    assert restarted == {*RAISES, DIES}


def test_the_host_of_a_later_call_takes_the_store_of_that_call_along(prepare: Launch) -> None:
    job = prepare(world=3, store=False).start(WORKER, NVRX_TEST_CALLS=str(DIES + 1), NVRX_TEST_VICTIM="0").finish(60)
    assert job.codes == {0: -signal.SIGKILL, 1: STORE_LOST, 2: STORE_LOST}, job.errors(1)
    for rank in (1, 2):
        assert [line["result"] for line in job.lines("done", initial_rank=rank)] == [3.0] * DIES
    assert_no_process_left(job)


def test_calls_under_the_store_of_a_launcher_do_not_read_the_keys_of_earlier_ones(prepare: Launch) -> None:
    job = prepare(world=3)
    job.start_store()
    assert job.endpoint is not None
    host, port = job.endpoint.rsplit(":", 1)
    agent = {"MASTER_ADDR": host, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    job.start(WORKER, NVRX_TEST_CALLS=str(DIES), NVRX_TEST_LATE="0.5", **agent).finish(60)
    assert set(job.codes.values()) == {0}, job.errors(0)
    restarted = {line["call"] for line in job.lines("fit") if line["iteration"] > 0}
    assert restarted == {call for call in RAISES if call < DIES}
