"""Runs one job on fresh rank processes, within a bound, and collects their stamps.

The bench is the subreaper of everything it starts: a process that outlives its rank, daemon or not, becomes a child
of the bench and is ended by pid. No launch leaves a process behind, whatever the implementation under test does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import random
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass

from job import Job
from machine import Usage

__all__ = ["Event", "Launch", "become_subreaper", "launch"]

HERE = pathlib.Path(__file__).resolve().parent
PR_SET_CHILD_SUBREAPER = 36
PORTS = 64
START_LIMIT = 60.0
LEAVE_LIMIT = 2.0
QUIET = {"TORCH_CPP_LOG_LEVEL": "fatal", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
NCCL = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}
"""NCCL as between hosts, for it refuses two ranks of one host on one device; and what both packages require."""
FOREIGN = ("NVRX_", "TORCHELASTIC_", "MASTER_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTHON")


@dataclass(frozen=True)
class Event:
    """One stamp of one rank: `rank` is the initial rank, `at` is time.monotonic()."""

    event: str
    rank: int
    at: float
    iteration: int
    value: float


@dataclass(frozen=True)
class Launch:
    """What came out of a launch.

    Attributes:
        events: the stamps of all ranks in the order of writing.
        codes: exit code by rank; None where the bound ended the rank.
        left: processes still there `LEAVE_LIMIT` seconds after the last rank ended.
        usage: the load average at the start, the cores that others used meanwhile, and the seconds it took.
        log: the end of what the ranks wrote to standard output and error.
    """

    job: Job
    ranks: int
    events: tuple[Event, ...]
    codes: tuple[int | None, ...]
    left: int
    usage: tuple[float, float, float]
    log: str


def become_subreaper() -> None:
    """Makes this process the parent of every orphan among its descendants."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def free_ports() -> int:
    """Returns the first of `PORTS` free ports in a row, below the range of ephemeral ports."""
    while True:
        first = random.randrange(20000, 32000 - PORTS, PORTS)
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            for port in range(first, first + PORTS):
                sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def environment(rank: int, ranks: int, port: int, import_path: str | None) -> dict[str, str]:
    """Returns the environment of one rank: ours, cleaned of other jobs, plus the rendezvous."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    path = {"PYTHONPATH": import_path} if import_path else {}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    return {
        **clean,
        **QUIET,
        **NCCL,
        **path,
        **where,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "NCCL_HOSTID": f"rank-{rank}",
    }


def read_events(path: pathlib.Path) -> tuple[Event, ...]:
    """Reads the stamps written so far, without a last line that is still being written."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return tuple(Event(**json.loads(line)) for line in lines if line.endswith("\n"))


def wait_ready(processes: list[subprocess.Popen[bytes]], events: pathlib.Path) -> None:
    """Returns when all ranks stand at the gate, one has ended, or the limit is over."""
    deadline, pause = time.monotonic() + START_LIMIT, threading.Event()
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        if sum(event.event == "ready" for event in read_events(events)) == len(processes):
            return
        pause.wait(0.05)


def open_gate(processes: list[subprocess.Popen[bytes]]) -> None:
    """Lets the ranks start their calls together."""
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()


def wait_exits(processes: list[subprocess.Popen[bytes]], limit: float) -> tuple[int | None, ...]:
    """Waits for all ranks within the limit; returns their exit codes, None for one that still runs."""
    deadline = time.monotonic() + limit
    poll = select.poll()
    waiting = {os.pidfd_open(process.pid): process for process in processes if process.poll() is None}
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    while waiting and time.monotonic() < deadline:
        for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            waiting.pop(descriptor).wait()
            poll.unregister(descriptor)
            os.close(descriptor)
    for descriptor in waiting:
        os.close(descriptor)
    late = {process.pid for process in waiting.values()}
    return tuple(None if process.pid in late else process.returncode for process in processes)


def descendants() -> list[int]:
    """Returns the pids below this process, dead ones that wait for their parent left out."""
    parent: dict[int, int] = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, ppid = entry.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parent[int(entry.parent.name)] = int(ppid)
    found, level = [], [os.getpid()]
    while level := [pid for pid, ppid in parent.items() if ppid in level]:
        found += level
    return found


def reap_orphans() -> None:
    """Collects the exit status of every orphan that has ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def clear_away() -> int:
    """Ends what outlived the ranks by pid; returns how many processes that were after a grace."""
    deadline, pause = time.monotonic() + LEAVE_LIMIT, threading.Event()
    while descendants() and time.monotonic() < deadline:
        reap_orphans()
        pause.wait(0.05)
    left = len(descendants())
    while alive := descendants():
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pause.wait(0.05)
        reap_orphans()
    reap_orphans()
    return left


def launch(job: Job, python: str, *, ranks: int, limit: float, import_path: str | None) -> Launch:
    """Runs the job on `ranks` new processes of the given interpreter, at most `limit` seconds past the gate."""
    load, usage, begin, port = os.getloadavg()[0], Usage(), time.monotonic(), free_ports()
    with tempfile.TemporaryDirectory(prefix="nvrx-bench-") as folder:
        events, log = pathlib.Path(folder, "events.jsonl"), pathlib.Path(folder, "log")
        command = [python, str(HERE / "worker.py"), job.to_json(), str(events)]
        processes: list[subprocess.Popen[bytes]] = []
        with log.open("ab") as output:
            for rank in range(ranks):
                env = environment(rank, ranks, port, import_path)
                processes.append(
                    subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=folder)
                )
        try:
            wait_ready(processes, events)
            open_gate(processes)
            codes = wait_exits(processes, limit)
        finally:
            left = stop(processes)
        text = log.read_text(errors="replace")[-4000:]
        used = (load, usage.others(), time.monotonic() - begin)
        return Launch(job, ranks, read_events(events), codes, left, used, text)


def stop(processes: list[subprocess.Popen[bytes]]) -> int:
    """Ends the ranks that still run (past the limit, or the bench is interrupted), then what they left."""
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    return clear_away()
