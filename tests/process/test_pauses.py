"""A machine that pauses: all of a node's processes are stopped for a while, and go on."""

from __future__ import annotations

import os
import signal
import time

from tests.harness.process.host import stop
from tests.harness.process.oracle import assert_nothing_lost

from .conftest import Launch

PAUSE = 12.0
"""Seconds; longer than a store may be silent, and than any timeout below."""
SHORT = {"soft_timeout": 2.0, "hard_timeout": 4.0, "heartbeat_timeout": 3.0}


def test_a_pause_of_the_whole_node_costs_its_length_and_nothing_else(launch: Launch) -> None:
    jobs = [launch({}, world=2, steps=25, step_seconds=0.2, wrapper=SHORT, collective=both) for both in (False, True)]
    stores = {job.store_pid for job in jobs}
    for job in jobs:
        for rank in range(2):
            job.await_line("step", initial_rank=rank, step=5)
    node = jobs[0].template.leftovers()
    stop(*node)
    time.sleep(PAUSE)
    for pid in sorted(node.keys() - stores, reverse=True):  # a fork server kills a worker that is still stopped
        os.kill(pid, signal.SIGCONT)
    time.sleep(0.2)
    for store in stores:
        assert store is not None
        os.kill(store, signal.SIGCONT)
    for job in jobs:
        job.finish()
    for job in jobs:
        assert_nothing_lost(job)
