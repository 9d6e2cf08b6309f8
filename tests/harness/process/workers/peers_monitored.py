"""Trainings with rank monitors that are written against nvidia-resiliency-ext: `peers_monitored.py CASE`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from nvidia_resiliency_ext import fault_tolerance
from nvidia_resiliency_ext.fault_tolerance.data import WorkloadAction, WorkloadControlRequest

RANK = int(os.environ["RANK"])
CYCLE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
STATE = Path(os.environ["NVRX_TEST_GATE"]).with_name(f"ft_state_{RANK}.json")


def say(event: str, **fields: object) -> None:
    os.write(1, f"{json.dumps({'event': event, 'rank': RANK, 'cycle': CYCLE, **fields})}\n".encode())


def heartbeats() -> None:
    """Rank 1 hangs in the first cycle."""
    client = fault_tolerance.RankMonitorClient()
    client.init_workload_monitoring()
    for step in range(20):
        client.send_heartbeat()
        if (CYCLE, RANK, step) == (0, 1, 10):
            time.sleep(120)
        time.sleep(0.02)
    assert client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)
    say("learned", timeouts=client.state_dict()["current_timeouts"]["heartbeat"])
    client.shutdown_workload_monitoring()


def sections() -> None:
    """The timeouts are learned in the first cycle, which rank 0 ends by a failure, and loaded in the second.

    They are a thousand times what is slept here: no rank of a busy machine exceeds them.
    """
    client = fault_tolerance.RankMonitorClient()
    client.init_workload_monitoring(num_warmup_iters=2)
    client.start_section("setup")
    time.sleep(0.02)
    if STATE.exists():
        client.load_state_dict(json.loads(STATE.read_text()))
        say("loaded", calculated=sorted(client.section_timeouts.calculated_sections))
    client.end_section("setup")
    for _ in range(20):
        client.start_section("step")
        time.sleep(0.01)
        client.end_section("step")
        time.sleep(0.02)
    client.start_section("checkpointing")
    client.calculate_and_set_section_timeouts(selected_sections=["step", "setup"], calc_out_of_section=True)
    STATE.write_text(json.dumps(client.state_dict()))
    await_other()
    client.end_all_sections()
    if CYCLE == 0:
        fail()
    client.shutdown_workload_monitoring()
    if RANK == 0:
        request = WorkloadControlRequest(action=WorkloadAction.ShutdownWorkload, description="trained enough")
        client.send_workload_control_request(request)
    time.sleep(120)


def await_other() -> None:
    """Wait until both ranks have come here in this cycle, which rank 0 ends."""
    arrived = [STATE.with_name(f"cycle_{CYCLE}_{rank}") for rank in (0, 1)]
    arrived[RANK].touch()
    while not all(each.exists() for each in arrived):
        time.sleep(0.01)


def fail() -> None:
    if RANK == 0:
        raise SystemExit(3)
    time.sleep(120)


if __name__ == "__main__":
    {"heartbeats": heartbeats, "sections": sections}[sys.argv[1]]()
    say("done")
