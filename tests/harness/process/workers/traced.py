"""Two ranks that record through which files of nvrx_core a call goes: an exception, a ping, a SIGKILL, a timeout.

A line is `<pid> <phase> <thread> <file> <function>`, for the first call of the function in the phase. A monitor process
stays in the phase of its fork, `entry`. The phase of the timeout, `value`, has the functions that it is passed to, in
the order of the calls.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from nvrx_core.inprocess import CallWrapper, Wrapper

SOFT = 61.37
RANK = int(os.environ["RANK"])
RECORD = Path(os.environ["NVRX_TEST_RECORDS"]).with_name(f"trace-{RANK}")
phase = ["entry"]
seen = set[tuple[object, ...]]()


def trace(frame: FrameType, event: str, _: object) -> None:
    _, inside, file = frame.f_code.co_filename.partition("/nvrx_core/")
    if event == "call" and inside:
        called = file, frame.f_code.co_name
        note(*phase, *called)
        if phase == ["entry"] and any(is_given(value) for value in list(frame.f_locals.values())):
            note("value", *called)


def note(now: str, file: str, function: str) -> None:
    """Open the record each time: a monitor process closes the rank's files."""
    line = os.getpid(), now, threading.current_thread().name, file, function
    if line not in seen:
        seen.add(line)
        record = os.open(RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(record, (" ".join(map(str, line)) + "\n").encode())
        os.close(record)


def is_given(value: Any) -> bool:
    fields = value if type(value) is dict else getattr(value, "__dict__", {})
    inner = [each for value in list(fields.values()) for each in list(getattr(value, "__dict__", {}).values())]
    return any(is_soft(each) for each in (value, *list(fields.values()), *inner))


def is_soft(value: object) -> bool:
    return value == SOFT if type(value) is float else type(value) is timedelta and value.total_seconds() == SOFT


def train(call: CallWrapper) -> None:
    if call.iteration == 0:
        phase[:] = ["ping"]
        call.ping()
        phase[:] = ["exception"]
        if RANK == 0:
            raise ValueError("injected")
    if call.iteration == 1:
        phase[:] = ["kill"]
        store = call.iteration_store()
        store.set(f"rank {RANK}", "")
        store.wait(["rank 0"])
        if RANK == 1:
            time.sleep(0.5)  # the other waits: an interruption of a tracing function ends the record
            os.kill(os.getpid(), signal.SIGKILL)
    if call.iteration < 2:
        threading.Event().wait(60)


if __name__ == "__main__":
    threading.setprofile(trace)
    sys.setprofile(trace)
    Wrapper(soft_timeout=timedelta(seconds=SOFT), hard_timeout=timedelta(seconds=90))(train)()
