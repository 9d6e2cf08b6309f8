"""The abort itself fails: it takes long, or it never ends. That it may raise is shown in `test_options`."""

from __future__ import annotations

import signal

import pytest

from tests.harness.process.oracle import assert_nothing_lost, restart

from .conftest import Launch

KILLED = -signal.SIGKILL
HARD = {"soft_timeout": 1.1, "hard_timeout": 2.2, "termination_grace_time": 0.2}
RARELY = {"monitor_thread_interval": 20.0, "monitor_process_interval": 20.0}
FOREVER = 1e6


def test_a_restart_waits_for_an_abort_that_takes_long(launch: Launch) -> None:
    job = launch({(1, 0, 3): "exception"}, collective=True, abort={"0": 0.6}, wrapper=RARELY).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[1]))
    (injected,), (aborted,) = job.lines("fault_injected"), job.lines("abort")
    assert all(line["at"] > aborted["at"] + 0.6 for line in job.lines("enter", iteration=1))
    assert aborted["at"] < injected["at"] + 10, "the abort has waited for an interval"


@pytest.mark.parametrize("stuck", [0, 1], ids=["on another rank", "on the rank that failed"])
def test_a_rank_whose_abort_never_ends_is_killed(launch: Launch, stuck: int) -> None:
    job = launch({(1, 0, 3): "exception"}, collective=stuck == 0, abort={str(stuck): FOREVER}, wrapper=HARD).finish()
    lost = restart("EXCEPTION", by=None, lost=[stuck])
    assert_nothing_lost(job, lost, codes={stuck: job.codes[stuck]})
    assert job.codes[stuck] in (-signal.SIGTERM, KILLED)
