"""Changes of scripts to their own process: signals, descriptors, limits, globals of the interpreter.

`BEFORE` happens before the call. `INSIDE` is what rank 0 does in iteration 0 until rank 1 fails; both do a collective
in iteration 1.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import resource
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from nvrx_core.inprocess import CallWrapper, Wrapper
from tests.harness.process.workers.record import Record

CASE = "NVRX_TEST_CASE"
LOSES_DESCRIPTORS = "without_descriptors_of_others"
"""The case that costs rank 1 its place in the job."""
SETTINGS = {"soft_timeout": timedelta(seconds=10), "hard_timeout": timedelta(seconds=20)}
PR_SET_CHILD_SUBREAPER = 36


def handles_all_signals() -> None:
    kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1, signal.SIGCHLD, signal.SIGSEGV, signal.SIGABRT}
    for signum in signal.valid_signals() - kept:
        signal.signal(signum, lambda *_: None)


def reaps_all_children() -> None:
    def reap(*_: object) -> None:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    signal.signal(signal.SIGCHLD, reap)


def ticks() -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)


def has_a_hostile_log() -> None:
    class Handler(logging.Handler):
        def handle(self, record: logging.LogRecord) -> NoReturn:
            raise SystemExit(5)

    logging.getLogger().addHandler(Handler())


def has_no_streams() -> None:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]


def has_no_descriptors() -> None:
    """As a daemon that was started without them; a library prints all the same."""

    def prints() -> NoReturn:
        while True:
            for descriptor in (1, 2):
                with suppress(OSError):
                    os.write(descriptor, b"a line of a library\n")
            time.sleep(0.01)

    has_no_streams()
    sys.__stderr__ = None  # type: ignore[assignment]
    for descriptor in (1, 2):
        os.close(descriptor)
    threading.Thread(target=prints, daemon=True).start()


def has_no_poll() -> None:
    """As with a library that makes all waits cooperative."""
    del select.poll, select.epoll


def has_a_full_disk() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(full, stream)


def has_no_pending_signals() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_SIGPENDING)
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, hard))
    threading.Timer(2.0, resource.setrlimit, (resource.RLIMIT_SIGPENDING, (hard, hard))).start()


def has_no_temporary_folder() -> None:
    os.environ["TMPDIR"] = "/nonexistent/folder"
    tempfile.tempdir = None


BEFORE: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        handles_all_signals, reaps_all_children, ticks, has_a_hostile_log, has_no_streams,
        has_no_descriptors, has_no_poll, has_a_full_disk, has_no_pending_signals,
        has_no_temporary_folder,
    )
} | {
    "has_a_default_timeout": lambda: socket.setdefaulttimeout(0.2),
    "makes_warnings_errors": lambda: warnings.simplefilter("error"),
    "traces_memory": lambda: tracemalloc.start(25),
    "has_small_stacks": lambda: threading.stack_size(1 << 16),
    "is_a_subreaper": lambda: ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0),
}  # fmt: skip


def at_the_depth_limit() -> None:
    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)
        time.sleep(60)

    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    deeper(sys.getrecursionlimit() - depth - 3)


def in_recursion_errors() -> None:
    def deeper() -> None:
        deeper()

    while True:
        with suppress(RecursionError):
            deeper()


def without_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    held = list[int]()
    with suppress(OSError):  # EMFILE
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    try:
        time.sleep(60)
    finally:
        for descriptor in held:
            os.close(descriptor)


def without_a_folder() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)
    time.sleep(60)


def without_an_environment() -> None:
    os.environ.clear()
    time.sleep(60)


def without_children() -> None:
    """Kills all its children, as a clean-up of workers does."""
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children", encoding="ascii") as children:
            for pid in children.read().split():
                os.kill(int(pid), signal.SIGKILL)
    time.sleep(60)


def in_a_session_of_its_own() -> None:
    with suppress(PermissionError):  # it leads its group already
        os.setsid()
    time.sleep(60)


def in_a_pool() -> None:
    with get_context("fork").Pool(2) as pool:
        pool.map(time.sleep, [60, 60])


def in_threads_that_are_awaited() -> None:
    while True:
        threads = ThreadPoolExecutor(2)
        try:
            list(threads.map(time.sleep, [0.01] * 4))
        finally:
            threads.shutdown(wait=True)


def in_a_callback_of_c() -> None:
    pointer, numbers = ctypes.POINTER(ctypes.c_int), (ctypes.c_int * 1000)(*range(1000, 0, -1))
    compare = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer)(lambda one, other: one[0] - other[0])
    while True:
        ctypes.CDLL(None).qsort(numbers, 1000, ctypes.sizeof(ctypes.c_int), compare)


def in_a_query() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        database.set_progress_handler(lambda: sum(range(100)) < 0, 50)
        database.execute("with recursive c(x) as (select 1 union all select x + 1 from c) select sum(x) from c")


def in_a_backward_pass() -> None:
    value = torch.ones(10, requires_grad=True)
    value.register_hook(lambda gradient: time.sleep(60))
    value.sum().backward()


def on_a_full_pipe() -> None:
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    try:
        while True:
            os.write(1, bytes(1 << 16))
    finally:
        os.close(reader)


def in_a_program() -> None:
    subprocess.run(["sleep", "60"], stdout=subprocess.PIPE, check=False)


def in_a_c_call() -> None:
    while True:
        ctypes.CDLL(None).usleep(60_000_000)


def beside_a_busy_thread() -> None:
    def spin() -> NoReturn:
        while True:
            pass

    threading.Thread(target=spin, daemon=True).start()
    time.sleep(60)


def beside_stack_dumps() -> None:
    with open(os.devnull, "w", encoding="ascii") as nowhere:
        faulthandler.dump_traceback_later(0.02, repeat=True, file=nowhere)
        try:
            time.sleep(60)
        finally:
            faulthandler.cancel_dump_traceback_later()


def with_default_signals() -> NoReturn:
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1}:
        signal.signal(signum, signal.SIG_DFL)
    while True:
        pass


def with_calls_that_the_kernel_restarts() -> None:
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.siginterrupt(signum, False)
    reader, writer = os.pipe()
    try:
        os.read(reader, 1)
    finally:
        for descriptor in (reader, writer):
            os.close(descriptor)


INSIDE: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        at_the_depth_limit, in_recursion_errors, without_descriptors, without_a_folder, without_an_environment,
        without_children, in_a_session_of_its_own, in_a_pool, in_threads_that_are_awaited,
        in_a_callback_of_c, in_a_query, in_a_backward_pass, on_a_full_pipe, in_a_program, in_a_c_call,
        beside_a_busy_thread, beside_stack_dumps, with_default_signals, with_calls_that_the_kernel_restarts,
    )
}  # fmt: skip


def without_descriptors_of_others() -> None:
    """Closes them as code for daemons does, and opens files that get their numbers."""
    os.closerange(3, 256)
    for number in range(100):
        os.open(Path(os.environ["NVRX_TEST_CHECKPOINTS"], str(number)), os.O_RDWR | os.O_CREAT, 0o600)
    time.sleep(1.0)


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    record, case, rank = Record.of_environment(), os.environ[CASE], int(os.environ["RANK"])
    pause = time.sleep

    def function(call: CallWrapper) -> int:
        record("enter", iteration=call.iteration)
        if call.iteration == 0:
            if rank == 1:
                pause(1.0)
                if case == LOSES_DESCRIPTORS:
                    without_descriptors_of_others()
                raise ValueError("injected")
            if case == LOSES_DESCRIPTORS:
                pause(3.0)
                raise ValueError("injected")
            INSIDE.get(case, lambda: pause(60))()
        dist.init_process_group("gloo")
        ones = torch.ones(1)
        dist.all_reduce(ones)
        dist.destroy_process_group()
        return int(ones)

    BEFORE.get(case, lambda: None)()
    result = Wrapper(**SETTINGS)(function)()
    signal.setitimer(signal.ITIMER_REAL, 0)
    record("done", result=result)


if __name__ == "__main__":
    main()
