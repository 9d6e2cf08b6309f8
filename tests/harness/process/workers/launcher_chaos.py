"""A worker of a launcher under chaos: `launcher_chaos.py plain|coupled|wrapped [monitored]`.

It takes steps until the file at NVRX_TEST_GATE is there, prints a line at each, and writes how far it is to a file of
its own in the folder NVRX_TEST_STEPS. It has a child in a session of its own.
"""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from typing import Any

STEP = 0.1
LINE = "." * 150
RECORD = 300
RANK, CYCLE = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
WORLD = int(os.environ["WORLD_SIZE"])
GATE = os.environ["NVRX_TEST_GATE"]
PLACE = f"{os.environ['NVRX_TEST_NODE']}-{os.environ['LOCAL_RANK']}"


class Steps:
    """Counts the steps, where the test reads them."""

    def __init__(self) -> None:
        path = os.path.join(os.environ["NVRX_TEST_STEPS"], f"{PLACE}-{os.getpid()}")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        self._step = 0
        self._write(WORLD)

    def take(self, world: int = WORLD, **more: Any) -> None:
        self._step += 1
        self._write(world, **more)
        print(PLACE, CYCLE, self._step, LINE, flush=True)
        time.sleep(STEP)

    def _write(self, world: int, **more: Any) -> None:
        fields = {"rank": RANK, "cycle": CYCLE, "world": world, "pid": os.getpid(), "step": self._step, **more}
        os.pwrite(self._fd, json.dumps(fields).ljust(RECORD).encode(), 0)


STEPS = Steps()


def section() -> Any:
    """Return what one step is done in."""
    if "monitored" not in sys.argv:
        return nullcontext
    from nvrx_core.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()

    class Step:
        def __enter__(self) -> None:
            client.start_section("step")

        def __exit__(self, *_: object) -> None:
            client.end_section("step")

    return Step


def plain() -> None:
    step = section()
    while not os.path.exists(GATE):
        with step():
            STEPS.take()


def coupled() -> None:
    """Each step is over when all ranks have taken it, as with a collective."""
    step = section()
    peers = connected()
    going = True
    while going:
        with step():
            STEPS.take()
            going = agreed(peers)


def connected() -> list[socket.socket]:
    """Return the connections of rank 0 to all others, or of another one to rank 0."""
    where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if RANK == 0:
        with socket.create_server(where, backlog=64) as listener:
            return [listener.accept()[0] for _ in range(WORLD - 1)]
    deadline = time.monotonic() + 60
    while True:
        try:
            return [socket.create_connection(where)]
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def agreed(peers: list[socket.socket]) -> bool:
    """Wait for all others; return whether they go on, which rank 0 decides."""
    if RANK != 0:
        send(peers[0], b"s")
        return received(peers[0]) == b"g"
    for peer in peers:
        received(peer)
    going = not os.path.exists(GATE)
    for peer in peers:
        send(peer, b"g" if going else b"e")
    return going


def send(peer: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # what is read next tells
        peer.sendall(data)


def received(peer: socket.socket) -> bytes:
    """Return what a peer has sent; end this process if it has ended."""
    try:
        data = peer.recv(1)
    except OSError:
        data = b""
    return data or sys.exit("a peer has ended")


def wrapped() -> None:
    from datetime import timedelta

    from nvrx_core import inprocess

    step = section()

    @inprocess.Wrapper(
        soft_timeout=timedelta(seconds=4), hard_timeout=timedelta(seconds=8),
        heartbeat_interval=timedelta(seconds=1), heartbeat_timeout=timedelta(seconds=5),
        barrier_timeout=timedelta(seconds=20), completion_timeout=timedelta(seconds=20),
    )  # fmt: skip
    def train(call: inprocess.CallWrapper) -> None:
        while not os.path.exists(GATE):
            call.ping()
            with step():
                STEPS.take(call.state.world_size, iteration=call.iteration)

    train()


if __name__ == "__main__":
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    {"plain": plain, "coupled": coupled, "wrapped": wrapped}[sys.argv[1]]()
