"""A rank that exhausts a resource: files, processes, memory. `NVRX_TEST_CASE` names the function below that says how.

Where a limit has a number, `NVRX_TEST_LIMIT` has it; the rank that it is for is initial rank 1.
"""

import os
import resource
import subprocess
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from nvrx_core.inprocess.call import monitor_link
from nvrx_core.process import fork_server_process
from tests.harness.process.few_processes import few_processes
from tests.harness.process.workers.record import Record

TARGET = 1
MARGIN = 64 << 20
SHORT = {"soft_timeout": 1.1, "hard_timeout": 2.0, "heartbeat_timeout": 1.5, "barrier_timeout": 3.0}
PATIENT = {**SHORT, "soft_timeout": 6.0, "hard_timeout": 7.0, "barrier_timeout": 8.0}
"""The first call must not restart before its monitor process was replaced as often as it may be."""
CROWDS = {"crowd": 10.0, "crowd_for_good": 4.0}
"""The heartbeat timeout of these cases."""
_kept: list[Any] = []


def main() -> None:
    record, me = Record.of_environment(), int(os.environ["RANK"])
    limit, case = int(os.environ.get("NVRX_TEST_LIMIT", "0")), os.environ["NVRX_TEST_CASE"]
    exhaust = {
        "files": files, "files_for_good": files_for_good, "memory": memory,
        "files_in_a_collective": partial(files_in_a_collective, record), "cgroup": cgroup, "many_files": many_files,
        "mistake": mistake, "few_processes": partial(time.sleep, 60),
        **dict.fromkeys(CROWDS, partial(crowd, record, case)),
    }.get(case)  # fmt: skip
    if me == TARGET:
        limit_process(case, limit)
    short = PATIENT if case == "few_processes" else SHORT
    times = {"heartbeat_timeout": CROWDS[case]} if case in CROWDS else short
    settings: dict[str, Any] = {name: timedelta(seconds=seconds) for name, seconds in times.items()}

    @inprocess.Wrapper(no_progress_limit=(limit or None) if case == "mistake" else 3, **settings)
    def train(call: CallWrapper) -> int:
        record("enter", iteration=call.iteration, rank=os.environ["RANK"], world_size=os.environ["WORLD_SIZE"])
        if exhaust is None or (call.iteration and case not in ("files_for_good", "mistake")):
            return call.iteration
        if case == "files_in_a_collective":
            dist.init_process_group("gloo")
        if me == TARGET:
            exhaust()
        elif case == "crowd":
            record.await_others(1, "monitored")
        elif case == "files_in_a_collective":
            record.await_others(1, "waits")
            time.sleep(0.5)
            raise ValueError("injected")
        while case == "cgroup":
            time.sleep(0.01)
        if case == "crowd":
            return call.iteration
        time.sleep(60)
        raise AssertionError("nothing ran out")

    record("done", result=train())


def limit_process(case: str, limit: int) -> None:
    """What the target lacks when it makes the call."""
    if case == "few_files":
        few_files(limit)
    elif case == "few_processes" or case in CROWDS:
        few_processes(limit)
    elif case == "many_files":
        many_files()
    elif case == "cgroup":
        Path(os.environ["NVRX_TEST_CGROUP"], "cgroup.procs").write_text(f"{os.getpid()}\n")
    if case in CROWDS:
        monitor_link.STARTS_AFTER = fork_server_process.STARTS_WITHIN = 1.0  # type: ignore[misc]


def few_files(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def crowd(record: Record, case: str) -> None:
    """Takes all processes that there may be before the monitor process is forked, and gives them back after a while."""
    others = []
    with suppress(BlockingIOError):
        while True:
            others.append(subprocess.Popen(["sleep", "60"]))
    record("crowded", others=len(others))
    try:
        time.sleep(1.5 if case == "crowd" else 60.0)
    finally:
        for each in others:
            each.kill()
            each.wait()
    record("monitored", pid=inprocess.current_call().monitor_process.pid)


def cgroup() -> None:
    """Until the kernel kills this process, which has a monitor process that sees how it ends."""
    assert inprocess.current_call().monitor_process.pid
    while True:
        _kept.append(b"x" * (8 << 20))


def many_files() -> None:
    """Takes all numbers of files that `select` has, and fails when they are taken already."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if _kept:
        raise ValueError("injected")
    _kept.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(1100))


def files() -> None:
    """Opens files until none is left, and lets them go as it fails."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    opened = []
    while True:
        opened.append(open(os.devnull))  # noqa: SIM115 (this is the fault)


def mistake() -> None:
    optimiser.step()  # noqa: F821 (this is the fault)


def files_for_good() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    while True:
        _kept.append(open(os.devnull))  # noqa: SIM115 (this is the fault)


def files_in_a_collective(record: Record) -> None:
    """Opens all files that there are, and waits for a peer."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    opened = []
    with suppress(OSError):
        while True:
            opened.append(open(os.devnull))  # noqa: SIM115 (this is the fault)
    record("waits")
    dist.recv(torch.zeros(1), src=0)


def memory() -> None:
    """Takes memory until the kernel refuses it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MARGIN,) * 2)
    taken = []
    while True:
        taken.append(bytearray(1 << 20))


if __name__ == "__main__":
    main()
