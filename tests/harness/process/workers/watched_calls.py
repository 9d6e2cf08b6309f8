"""A rank with a rank monitor and a wrapped call: one page, and one process that judges at a time.

`NVRX_TEST_CONFIG` are the settings of a monitor of its own; without it the rank connects to the one that its
environment names. Iteration 0 hangs in a section of rank 1; iteration 1 lives by pings for longer than the heartbeat
timeout, while a reserve waits. After the call each rank does what `AFTER` says.
"""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta

from nvrx_core import inprocess
from nvrx_core.fault_tolerance import FaultToleranceConfig, RankMonitorClient, start_local_monitor
from nvrx_core.inprocess import CallWrapper
from nvrx_core.inprocess.rank_assignment import MaxActiveWorldSize, ShiftRanks
from nvrx_core.progress.page import ProgressField
from tests.harness.process.monitored import monitors_of
from tests.harness.process.workers.record import Record

TIMEOUT = 1.0
"""Seconds, of heartbeats and of section `step`."""
LONG = 60.0
CONFIG = "NVRX_TEST_CONFIG"


class Rank:
    """One rank."""

    def __init__(self) -> None:
        self.record, self.me, self.client = Record.of_environment(), int(os.environ["RANK"]), monitored()

    def run(self) -> None:
        self.record("monitored", monitors=len(monitors_of(os.getpid())))
        assignment = inprocess.Compose(MaxActiveWorldSize(2), ShiftRanks())
        wrapper = inprocess.Wrapper(
            rank_assignment=assignment,
            soft_timeout=timedelta(seconds=LONG),
            hard_timeout=timedelta(seconds=LONG + 30),
            heartbeat_interval=timedelta(seconds=0.1),
            heartbeat_timeout=timedelta(seconds=10),
        )
        wrapper(self.train)()
        self.record("returned", monitors=len(monitors_of(os.getpid())))
        (self.go_on, self.hang_in_section, self.hang)[self.me]()

    def train(self, call_wrapper: CallWrapper | None = None) -> int:
        assert call_wrapper is not None
        self.record("enter", iteration=call_wrapper.iteration)
        if call_wrapper.iteration == 0:
            self.client.start_section("step" if self.me == 1 else "other")
            self.ping(call_wrapper, 0.0 if self.me == 1 else LONG)
            time.sleep(LONG)
        self.client.start_section("step")
        self.client.end_section("step")
        self.fork()
        self.client.send_heartbeat()
        self.record("trains", monitors=len(monitors_of(os.getpid())), judge=self.client.page[ProgressField.MONITOR_PID])
        self.ping(call_wrapper, 3 * TIMEOUT)
        return call_wrapper.iteration

    def fork(self) -> None:
        """A child is not a rank: its calls of the client are not reported."""
        if (child := os.fork()) == 0:
            self.client.start_section("step")
            os._exit(0)
        os.waitpid(child, 0)

    def ping(self, call_wrapper: CallWrapper, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            call_wrapper.ping()
            time.sleep(0.02)

    def go_on(self) -> None:
        """Trains without another word, if its own monitor looks at bytecode, else with heartbeats."""
        end = time.monotonic() + 2 * TIMEOUT
        while time.monotonic() < end:
            if self.client.local_monitor is None:
                self.client.send_heartbeat()
            time.sleep(0.02)
        self.client.shutdown_workload_monitoring()
        self.record("done")

    def hang_in_section(self) -> None:
        self.client.start_section("step")
        time.sleep(LONG)

    def hang(self) -> None:
        self.client.send_heartbeat()
        time.sleep(LONG)


def monitored() -> RankMonitorClient:
    if CONFIG in os.environ:
        return start_local_monitor(FaultToleranceConfig(**json.loads(os.environ[CONFIG])))
    client = RankMonitorClient()
    client.init_workload_monitoring()
    return client


if __name__ == "__main__":
    Rank().run()
