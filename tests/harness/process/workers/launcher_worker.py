"""A worker of a launcher: `launcher_worker.py CASE`. Each line of output is a JSON object, with an `event`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

RANK, CYCLE = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
IGNORES_SIGTERM = """\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


def say(event: str, **fields: Any) -> None:
    line = json.dumps({"event": event, "rank": RANK, "cycle": CYCLE, "pid": os.getpid(), **fields})
    os.write(1, f"{line}\n".encode())  # in one piece: the workers share a pipe


def done() -> None:
    """Ends at once."""


def killed() -> None:
    """Rank 1 is killed in the first cycle."""
    if CYCLE == 0:
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def fails() -> None:
    """Rank 1 fails in each cycle."""
    if RANK == 1:
        sys.exit(3)
    time.sleep(60)


def raises() -> None:
    """Rank 1 raises in each cycle."""
    if RANK == 1:
        raise TypeError("injected")
    time.sleep(60)


def raises_when_told() -> None:
    """Rank 1 raises in each cycle as soon as it may."""
    told = os.path.join(os.path.dirname(os.environ["NVRX_TEST_GATE"]), f"raise-{CYCLE}")
    while RANK != 1 or not os.path.exists(told):
        time.sleep(0.02)
    raise TypeError(f"injected in cycle {CYCLE}")


def weakens() -> None:
    """Rank 1 fails in the first cycle; the others wait until they may end."""
    if (CYCLE, RANK) == (0, 1):
        sys.exit(3)
    gated()


def waits() -> None:
    """Waits for a signal."""
    time.sleep(60)


def family() -> None:
    """Has a child that ignores SIGTERM, and one in a session of its own; it ignores SIGTERM itself."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for new_session in (False, True):
        child = subprocess.Popen(
            [sys.executable, "-c", IGNORES_SIGTERM], start_new_session=new_session, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        say("child", child=child.pid)
    say("family")
    time.sleep(60)


def hangs() -> None:
    """Rank 1 hangs in a section in the first cycle."""
    from nvrx_core.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("step")
    if CYCLE == 0:
        time.sleep(0.2 if RANK == 0 else 60)
    client.end_section("step")
    if CYCLE == 0:
        time.sleep(60)


def collective() -> None:
    """In the first cycle the last rank hangs in a step in which all others wait for it, in a collective."""
    import torch
    import torch.distributed as dist

    from nvrx_core.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    client.start_section("step")
    say("step")
    if CYCLE == 0 and dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(1))
    client.end_section("step")
    dist.destroy_process_group()


def behind() -> None:
    """In the first cycle rank 2 hangs in its first step; the others wait for it in their second one."""
    from nvrx_core.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("step")
    say("step")
    if CYCLE == 0:
        if RANK != 2:
            client.end_section("step")
            client.start_section("step")
        time.sleep(60)
    client.end_section("step")


def prints() -> None:
    """Prints to both streams, the last line without an end."""
    print("to stdout", flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    sys.stdout.write("no end")


def chats() -> None:
    """Prints without end, until it may end."""
    gate = os.environ["NVRX_TEST_GATE"]
    while not os.path.exists(gate):
        for _ in range(20):
            os.write(1, b"x" * 4000 + b"\n")
        time.sleep(0.005)
    say("chatted")


def shows_progress() -> None:
    """Shows a progress bar as tqdm does, and waits with half a line on the screen."""
    for step in range(3):
        os.write(2, f"\r {step}/3 steps".encode())
        time.sleep(0.05)
    gated()
    os.write(2, b"\r 3/3 steps\n")


def tells() -> None:
    """Says what it was given."""
    with open("/proc/self/numa_maps") as file:
        policies = sorted({line.split()[1] for line in file})
    say("told", environ=dict(os.environ), processors=sorted(os.sched_getaffinity(0)), policies=policies)


def loses() -> None:
    """Prints lines of which some are filtered."""
    print(f"loss {RANK}, and more", flush=True)
    print("step", flush=True)
    print(f"Error {RANK}", file=sys.stderr, flush=True)
    sys.stdout.write("loss at last")


def imported() -> None:
    """Says whether something has been imported for it; waits in the first two cycles."""
    say("imported", warm="decimal" in sys.modules)
    if CYCLE < 2:
        time.sleep(120)


def churns() -> None:
    """Rank 1 fails in each cycle, but in the second and the last one, where it waits for a file first."""
    last = int(os.environ["NVRX_TEST_LAST"])
    if CYCLE in (2, last):
        with open(f"{os.environ['NVRX_TEST_GATE']}-{CYCLE}.reached-{RANK}", "w"):
            pass
        while not os.path.exists(f"{os.environ['NVRX_TEST_GATE']}-{CYCLE}"):
            time.sleep(0.02)
    if last == CYCLE:
        return
    if RANK == 1:
        sys.exit(3)
    time.sleep(60)


def asks() -> None:
    """Rank 0 asks that the job ends."""
    from nvrx_core.fault_tolerance import RankMonitorClient, WorkloadAction, WorkloadControlRequest

    if RANK == 0:
        request = WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "the loss is not finite")
        RankMonitorClient().send_workload_control_request(request)
    time.sleep(60)


def excludes() -> None:
    """In the first cycle local rank 0 of the node with NVRX_TEST_EXCLUDED asks that its node takes no further part."""
    from nvrx_core.fault_tolerance import RankMonitorClient, WorkloadAction, WorkloadControlRequest

    if CYCLE == 0:
        if "NVRX_TEST_EXCLUDED" in os.environ and os.environ["LOCAL_RANK"] == "0":
            request = WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "a bad GPU")
            RankMonitorClient().send_workload_control_request(request)
        time.sleep(120)


def restarted() -> None:
    """Waits in the first cycle, and is done in the next one."""
    if CYCLE == 0:
        time.sleep(120)


def gated() -> None:
    """Waits until it may end."""
    while not os.path.exists(os.environ["NVRX_TEST_GATE"]):
        time.sleep(0.02)


def cut_off() -> None:
    """Waits for a long time in the first cycle, and until it may end in the others."""
    if CYCLE == 0:
        time.sleep(120)
    gated()


def killed_then_gated() -> None:
    """In the first cycle the last rank is killed as soon as it may be; waits until it may end in the next one."""
    gate = os.environ["NVRX_TEST_GATE"]
    while CYCLE == 0:
        if int(os.environ["WORLD_SIZE"]) - 1 == RANK and os.path.exists(os.path.join(os.path.dirname(gate), "kill")):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
    gated()


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        done,
        killed,
        fails,
        raises,
        raises_when_told,
        weakens,
        waits,
        family,
        hangs,
        collective,
        behind,
        prints,
        chats,
        shows_progress,
        tells,
        loses,
        imported,
        churns,
        asks,
        excludes,
        restarted,
        gated,
        cut_off,
        killed_then_gated,
    )
}

if __name__ == "__main__":
    say("start")
    CASES[sys.argv[1]]()
    say("done")
