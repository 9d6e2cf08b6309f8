"""A worker of a launcher with a fault in each cycle: `launcher_faults.py RANK:KIND,RANK:KIND,...`, one entry a cycle.

KIND is one of `nvrx_core.testing.faults`, or one of `inject_fault`. The ranks take steps on their own; after the
last fault they take five and are done.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from nvrx_core.fault_tolerance import RankMonitorClient
from nvrx_core.testing.faults import inject
from tests.harness.process.workers.launcher_worker import CYCLE, RANK, say

FAULTS = [entry.split(":") for entry in filter(None, sys.argv[1].split(","))]
STEPS = 5
LONG = 10_000


def inject_fault(client: RankMonitorClient, kind: str) -> None:
    match kind:
        case "spin":  # bytecode runs, and no sign of life comes
            client.end_section("step")
            while True:
                time.sleep(0.001)
        case "livelock":  # signs of life, and no progress
            while True:
                client.send_heartbeat()
                time.sleep(0.001)
        case "gate":  # healthy until the gate is there, then it hangs
            while not Path(os.environ["NVRX_TEST_GATE"]).exists():
                client.end_section("step")
                client.send_heartbeat()
                time.sleep(0.01)
                client.start_section("step")
            time.sleep(60)
        case "leave":
            os._exit(0)
        case _:
            inject(kind)


def main() -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    is_last = len(FAULTS) <= CYCLE
    target, kind = (-1, "") if is_last else (int(FAULTS[CYCLE][0]), FAULTS[CYCLE][1])
    for step in range(STEPS if is_last else LONG):
        client.start_section("step")
        if step == 1 and target == RANK:
            say("fault_injected", kind=kind)
            inject_fault(client, kind)
        time.sleep(0.01)
        client.end_section("step")
        client.send_heartbeat()
    client.shutdown_workload_monitoring()


if __name__ == "__main__":
    say("start")
    main()
    say("done")
