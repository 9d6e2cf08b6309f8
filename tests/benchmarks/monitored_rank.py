"""A rank beside a rank monitor, of ours or of the peer: `monitored_rank.py ours|peer CONFIG DO`; prints JSON lines.

DO is `calls`, `step` or `hang`. The rank starts its monitor itself.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUMBER = 2_000
STEP_SECONDS = 0.001
STEPS = 1_000


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def start_ours(config: dict[str, Any]) -> Any:
    from nvrx_core.fault_tolerance import FaultToleranceConfig, start_local_monitor

    return start_local_monitor(FaultToleranceConfig(**config))


def start_peer(config: dict[str, Any]) -> Any:
    from nvidia_resiliency_ext.fault_tolerance import FaultToleranceConfig, RankMonitorClient, RankMonitorServer

    path = os.path.join(tempfile.mkdtemp(), "monitor.socket")
    os.environ.update(FT_RANK_MONITOR_IPC_SOCKET=path)
    RankMonitorServer.run_in_subprocess(FaultToleranceConfig(**config), path)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    return client


def private_bytes() -> int:
    """The memory that belongs to the processes beside this one alone."""
    total = 0
    for pid in descendants(os.getpid()):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Private"))
    return total * 1024


def descendants(pid: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += [child, *descendants(child)]
    return found


def microseconds(call: Callable[[], object]) -> float:
    """One call, back to back, in microseconds: the least of five rounds."""
    return min(timeit.repeat(call, number=NUMBER, repeat=5)) / NUMBER * 1e6


def step_seconds(signs: Callable[[], object]) -> float:
    """A training step of a millisecond of work with its signs of life, on average."""
    began = time.perf_counter()
    for _ in range(STEPS):
        until = time.perf_counter() + STEP_SECONDS
        while time.perf_counter() < until:
            pass
        signs()
    return (time.perf_counter() - began) / STEPS


def main() -> None:
    whose, config, do = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    os.environ.setdefault("RANK", "0")
    if whose == "peer":
        import nvidia_resiliency_ext.fault_tolerance  # noqa: F401 (not part of the start of a monitor)
    else:
        import nvrx_core.fault_tolerance.local  # noqa: F401
    began = time.perf_counter()
    client = start_ours(config) if whose == "ours" else start_peer(config)
    started = time.perf_counter() - began

    def pair() -> None:
        client.start_section("step")
        client.end_section("step")

    pair()
    if do == "calls":
        say(
            start=started,
            private=private_bytes(),
            heartbeat=microseconds(client.send_heartbeat),
            pair=microseconds(pair),
        )
    elif do == "step":
        say(bare=step_seconds(lambda: None), heartbeat=step_seconds(client.send_heartbeat), pair=step_seconds(pair))
    else:
        client.start_section("step")
        say(hang=time.monotonic())
        time.sleep(60)
    os._exit(0)


if __name__ == "__main__":
    main()
