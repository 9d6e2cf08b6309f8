"""A rank that is watched by a rank monitor: `python -m tests.harness.process.workers.monitored CASE [JSON]`.

The JSON object has the settings of `FaultToleranceConfig`. Each line of output is a JSON object, with an `event`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from nvrx_core.fault_tolerance import FaultToleranceConfig, RankMonitorClient, start_local_monitor
from tests.harness.process.monitored import monitors_of

FOREVER = 60.0


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)


def section(client: RankMonitorClient) -> None:
    """Hangs in a section, after others were closed."""
    for _ in range(3):
        client.start_section("step")
        client.end_section("step")
    client.start_section("step")
    hang()


def nested(client: RankMonitorClient) -> None:
    """Hangs in an inner section that has no timeout; the outer one has."""
    client.start_section("step")
    client.start_section("inner")
    hang()


def crossing(client: RankMonitorClient) -> None:
    """Hangs in a section that was opened inside another one, which is closed by now."""
    client.start_section("outer")
    client.start_section("step")
    client.end_section("outer")
    hang()


def heartbeat(client: RankMonitorClient) -> None:
    """Sends some heartbeats, and then none."""
    for _ in range(5):
        client.send_heartbeat()
        time.sleep(0.01)
    hang()


def ignores(client: RankMonitorClient) -> None:
    """Hangs, and ignores the termination signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    heartbeat(client)


def nothing(client: RankMonitorClient) -> None:
    """Sends no heartbeat, and executes no bytecode."""
    hang()


def out_of_section(client: RankMonitorClient) -> None:
    """Closes a section, and opens no further one."""
    client.start_section("step")
    client.end_section("step")
    hang()


def stopped(client: RankMonitorClient) -> None:
    """Is stopped, as by a debugger that has forgotten it."""
    client.send_heartbeat()
    say("hang")
    os.kill(os.getpid(), signal.SIGSTOP)


def forked(client: RankMonitorClient) -> None:
    """Hangs, while a child that it has forked sends heartbeats and opens sections."""
    client.send_heartbeat()
    if os.fork() == 0:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            client.send_heartbeat()
            time.sleep(0.05)
        os._exit(0)
    hang()


def healthy(client: RankMonitorClient) -> None:
    """Trains until its input ends."""
    say("hang")
    os.set_blocking(0, False)
    while os.read(0, 1) if _has_input() else True:
        client.send_heartbeat()
        client.start_section("step")
        time.sleep(0.01)
        client.end_section("step")
    client.shutdown_workload_monitoring()


def _has_input() -> bool:
    import select

    return bool(select.select([0], [], [], 0)[0])


def silent(client: RankMonitorClient) -> None:
    """Shuts monitoring down, and does nothing for a while."""
    client.shutdown_workload_monitoring()
    client.shutdown_workload_monitoring()
    say("hang")
    time.sleep(3.0)


def learned(client: RankMonitorClient) -> None:
    """Learns its timeouts from times of milliseconds, and pauses out of its sections, as for a slow file system."""
    for _ in range(20):
        client.send_heartbeat()
        client.start_section("step")
        client.end_section("step")
        time.sleep(0.001)
    client.calculate_and_set_hb_timeouts()
    client.calculate_and_set_section_timeouts()
    say("hang")
    time.sleep(3.0)
    client.shutdown_workload_monitoring()


def beats(client: RankMonitorClient) -> None:
    """Sends as many heartbeats as its environment says, and then none."""
    for _ in range(int(os.environ["NVRX_TEST_BEATS"])):
        client.send_heartbeat()
    hang()


def stands_by(client: RankMonitorClient) -> None:
    """Opens nothing, until it is told to hang in a section."""
    say("idle")
    os.read(0, 1)
    client.start_section("step")
    hang()


def hang() -> None:
    say("hang")
    time.sleep(FOREVER)


CASES: dict[str, Callable[[RankMonitorClient], None]] = {
    case.__name__: case
    for case in (
        section,
        nested,
        crossing,
        heartbeat,
        ignores,
        nothing,
        out_of_section,
        stopped,
        forked,
        healthy,
        silent,
        learned,
        beats,
        stands_by,
    )
}


def main() -> None:
    config = FaultToleranceConfig(**json.loads(sys.argv[2])) if len(sys.argv) > 2 else None
    if config is None:
        client = RankMonitorClient()
        client.init_workload_monitoring()
    else:
        client = start_local_monitor(config)
    say("monitored", monitors=monitors_of(os.getpid()))
    CASES[sys.argv[1]](client)
    say("done")


if __name__ == "__main__":
    main()
