"""A training over gloo under launchers and rank monitors, that hangs in one shape a cycle: `... SHAPES`.

The argument has the names of `SHAPES`, with commas between them; the cycle after the last one is completed. A rank
sends heartbeats before it waits for others, so that all are overdue at about the same time.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from nvrx_core.fault_tolerance import RankMonitorClient
from nvrx_core.fault_tolerance.peers import RECOVERED, HungRank
from nvrx_core.fault_tolerance.wire import connect
from tests.harness.process.workers.hang_shapes import Slow

FOREVER = 1e6
RANK, CYCLE = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
client = RankMonitorClient()


def reduce(group: dist.ProcessGroup | None = None) -> None:
    dist.all_reduce(torch.ones(1), group=group)


def lock() -> None:
    mutex = threading.Lock()
    mutex.acquire()
    mutex.acquire()


def sleep() -> None:
    time.sleep(FOREVER)


def holds_gil() -> None:
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # unlike `sleep`, no signal ends it


def dead_worker() -> None:
    worker = subprocess.Popen(["false"])
    lock()
    worker.wait()


def loader() -> None:
    for _ in DataLoader(Slow(), num_workers=1):
        pass


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def busy() -> None:
    while True:
        sum(range(1000))


def others_wait(stand: Callable[[], None]) -> Callable[[], None]:
    """Rank 1 stands; the others wait for it in a collective."""

    def run() -> None:
        if RANK == 1:
            stand()
        reduce()

    return run


def early() -> None:
    """The timer of rank 0, which waits in a backward pass, runs out before that of rank 1."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    loss = model(torch.ones(1, 2)).sum()
    client.send_heartbeat()
    if RANK == 1:
        time.sleep(0.5)
        client.send_heartbeat()
        lock()
    loss.backward()


def in_section() -> None:
    client.start_section("step")
    others_wait(dead_worker)()


def new_group() -> None:
    if RANK == 1:
        sleep()
    dist.new_group(list(range(dist.get_world_size())))


def in_thread() -> None:
    """The ranks train in another thread than the main one."""
    thread = threading.Thread(target=others_wait(lock), daemon=True)
    thread.start()
    thread.join()


def alike() -> None:
    sleep()


def goes_on() -> None:
    """The launcher is told, as by a monitor, that a rank is about to be ended; one goes on, and one exits in order.

    The first one ends when the launcher has noted that it goes on.
    """
    launcher = os.environ["FT_LAUNCHER_IPC_SOCKET"]
    with connect(launcher, within=10.0) as connection:
        connection.send(HungRank(RANK, os.getpid(), "no heartbeat for 9 s", "").to_json())
        connection.receive()
    if RANK == 0:
        with connect(launcher, within=10.0) as connection:
            connection.send({"type": RECOVERED, "rank": RANK})
        while not os.path.exists(os.environ["NVRX_TEST_GATE"]):
            client.send_heartbeat()
            time.sleep(0.02)


def subgroup() -> None:
    """Rank 1 keeps rank 0 in their group, which keeps the others."""
    pair = dist.new_group([0, 1])
    if RANK == 1:
        lock()
    if RANK == 0:
        reduce(pair)
    reduce()


SHAPES: dict[str, Callable[[], None]] = {
    each.__name__: others_wait(each) for each in (lock, sleep, holds_gil, loader, stopped, busy)
} | {each.__name__: each for each in (early, in_section, in_thread, new_group, alike, goes_on, subgroup)}


def main() -> None:
    names = sys.argv[1].split(",")
    if names[CYCLE : CYCLE + 1] == ["early"]:
        importlib.import_module("torch._dynamo")  # DDP imports it, in seconds on a busy machine
    client.init_workload_monitoring()
    dist.init_process_group("gloo")
    client.send_heartbeat()
    dist.barrier()
    client.send_heartbeat()
    os.write(1, f'{{"event": "begun", "cycle": {CYCLE}}}\n'.encode())
    if len(names) > CYCLE:
        SHAPES[names[CYCLE]]()
    client.shutdown_workload_monitoring()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
