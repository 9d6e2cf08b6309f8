"""One rank of the benchmark, a fresh process: `python worker.py JOB EVENTS`, with RANK, WORLD_SIZE, MASTER_* set.

The same file runs under either implementation of the `Wrapper` interface, in that implementation's own environment.
It appends its stamps (time.monotonic, one clock for all processes of a host) as JSON lines to EVENTS, and starts
its call when the bench closes the gate on standard input, so that no rank's imports are part of a figure. A job that is
repeated is run by a fork of this process each time: a fault that ends a rank costs no new start of the interpreter.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib
import json
import os
import pathlib
import signal
import socket
import sys
import threading
import time
import timeit
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from busy import BUSY, in_asyncio
from job import RUN, Job
from torch.nn.parallel import DistributedDataParallel

__all__ = ["main"]

PORT = int(os.environ["MASTER_PORT"])
STEP = 0.005
LAST_STEPS = 10
BATCHES, BATCH = 20, 1000
WIDTH, DEPTH = 64, 8


class Trace:
    """The stamps of this rank (its initial one), appended to a file that all ranks share.

    Attributes:
        first: what the first iteration of this run is counted as.
        used: CPU seconds of this process at the end of its last step, and of its monitor process at the last entry.
    """

    def __init__(self, path: str) -> None:
        self.rank, self.first, self.used = int(os.environ["RANK"]), 0, {"cpu": 0.0, "cpu.monitor": 0.0}
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def stamp(self, event: str, at: float | None = None, *, iteration: int = -1, value: float = 0.0) -> None:
        """Writes one line: the event, now or at the given time."""
        at = time.monotonic() if at is None else at
        line = {"event": event, "rank": self.rank, "at": at, "iteration": self.first + iteration, "value": value}
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def stamp_cpu(self, call_wrapper: Any, iteration: int) -> None:
        """Stamps the CPU seconds of a restart: this process since its last step, its monitor since the last entry.

        The monitor process of another implementation is not known.
        """
        used, before = {"cpu": time.process_time()}, self.used
        if (monitor := getattr(call_wrapper, "monitor_process", None)) is not None:
            used["cpu.monitor"] = cpu_of(monitor.pid)
        if iteration:
            for name, seconds in used.items():
                self.stamp(name, iteration=iteration, value=seconds - before[name])
        self.used = before | used


def cpu_of(pid: int) -> float:
    """Returns the CPU seconds of all threads of a process."""
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def hold_gil() -> None:
    """Holds the GIL in a C call that no signal ends: a second lock of a plain mutex."""
    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(128)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def lock_twice() -> None:
    """Waits for a lock that nobody releases."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def inject_fault(kind: str) -> None:
    """Lets the fault happen; returns only if it is none."""
    if kind == "exception":
        raise RuntimeError("injected")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "sleep":
        time.sleep(1000)
    if kind == "lock":
        lock_twice()
    if kind == "recv":
        near, _far = socket.socketpair()
        near.recv(1)
    if kind == "gil":
        hold_gil()
    raise AssertionError(f"{kind}: no such fault, or it did not hold")


def join_group(job: Job, iteration: int) -> None:
    """Creates the user's group, as documented for the implementation under test."""
    timeout = datetime.timedelta(seconds=job.group_timeout)
    if not job.own_store:
        dist.init_process_group(job.backend, timeout=timeout)
        return
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port, patience = PORT + 2 + iteration, datetime.timedelta(seconds=30)
    store = dist.TCPStore("127.0.0.1", port, world_size, rank == 0, multi_tenant=True, timeout=patience)
    dist.init_process_group(job.backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


class Training:
    """Steps until the fault is injected, or ten steps in the iteration after the last fault."""

    def __init__(self, job: Job, trace: Trace, iteration: int) -> None:
        self.trace, self.iteration = trace, iteration
        self.ending = iteration >= len(job.faults)
        self.fault = job.faults[iteration] if trace.rank == job.target and not self.ending else None
        self.steps, self.begin = 0, time.monotonic()
        self.work = self._work(job)

    def _work(self, job: Job) -> Callable[[], object]:
        if job.workload == "model":
            return model_step(job.device)
        return reduction(torch.ones(16, device=job.device)) if job.collectives else (lambda: None)

    def step(self) -> bool:
        """Does one step; whether another one follows."""
        self.work()
        if self.steps == 0:
            self.trace.stamp("stepped", iteration=self.iteration)
        self.steps += 1
        self.trace.used["cpu"] = time.process_time()
        if self.fault is not None and time.monotonic() - self.begin >= self.fault.after:
            self.trace.stamp("fault", iteration=self.iteration)
            inject_fault(self.fault.kind)
        return not (self.ending and self.steps == LAST_STEPS)


def reduction(tensor: torch.Tensor) -> Callable[[], object]:
    """Returns an all_reduce whose end the rank waits for."""

    def step() -> None:
        dist.all_reduce(tensor.fill_(1))
        tensor[0].item()

    return step


def model_step(device: str) -> Callable[[], object]:
    """Makes a small model for DDP with its optimizer; returns what trains it for one step."""
    layers = [layer for _ in range(DEPTH) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer, batch = torch.optim.SGD(model.parameters(), lr=1e-3), torch.ones(8, WIDTH, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def train(job: Job, trace: Trace, iteration: int) -> None:
    """Trains, the main thread busy or waiting between two steps."""
    if job.collectives:
        join_group(job, iteration)
    training, pause = Training(job, trace, iteration), threading.Event()
    if job.busy == "asyncio":
        in_asyncio(training.step)
    else:
        between = BUSY.get(job.busy, lambda: pause.wait(STEP))
        while training.step():
            between()
    if job.collectives:
        dist.barrier()
        dist.destroy_process_group()


def time_calls(trace: Trace, call_wrapper: Any) -> None:
    """Times `ping` and an empty `atomic` section in batches, seconds a call."""

    def pair() -> None:
        with call_wrapper.atomic():
            pass

    pause = threading.Event()
    for name, call in (("ping", call_wrapper.ping), ("atomic", pair)):
        timer = timeit.Timer(call)
        for _ in range(BATCHES):
            trace.stamp(name, value=timer.timeit(BATCH) / BATCH)
            pause.wait(0.02)


def function_of(job: Job, trace: Trace) -> Callable[..., None]:
    """Returns the user's function of the job; its first line takes the stamp of entry."""

    def function(call_wrapper: Any = None) -> None:
        entered = time.monotonic()
        iteration = call_wrapper.iteration
        trace.stamp("entered", entered, iteration=iteration)
        trace.stamp_cpu(call_wrapper, iteration)
        if job.workload in ("training", "model"):
            train(job, trace, iteration)
        elif job.workload == "calls":
            time_calls(trace, call_wrapper)
        trace.stamp("done", iteration=iteration)

    return function


def wrap(job: Job, function: Callable[..., None], port: int) -> Callable[[], None]:
    """Wraps the function with the implementation under test; rank 0 hosts the store."""
    inprocess: Any = importlib.import_module(job.impl)
    function.__annotations__["call_wrapper"] = inprocess.CallWrapper
    durations = {name: datetime.timedelta(seconds=seconds) for name, seconds in job.wrapper.items()}
    unlimited = {"no_progress_limit": None} if job.impl.startswith("nvrx_core") else {}  # faults are injected alike
    store = {"port": port, "timeout": datetime.timedelta(seconds=60)}
    wrapped: Callable[[], None] = inprocess.Wrapper(store_kwargs=store, **durations, **unlimited)(function)
    return wrapped


def repeat(job: Job, trace: Trace) -> None:
    """Runs the job again and again, each time in a new process."""
    for number in range(job.repeat):
        pid = os.fork()
        if pid == 0:
            trace.first, port = RUN * number, PORT + 2 * number
            os.environ["MASTER_PORT"] = str(port)
            wrap(job, function_of(job, trace), port + 1)()
            return
        os.waitpid(pid, 0)


def main() -> None:
    """Runs the job of the command line as one rank."""
    torch.set_num_threads(1)
    job, trace = Job.from_json(sys.argv[1]), Trace(sys.argv[2])
    wrapped = wrap(job, function_of(job, trace), PORT + 1)
    trace.stamp("ready")
    sys.stdin.read()
    if job.repeat:
        repeat(job, trace)
        return
    trace.stamp("call")
    wrapped()
    trace.stamp("returned")


if __name__ == "__main__":
    main()
