"""A rank that a scheduler or Ctrl-C stops: `NVRX_TEST_CASE` says what it does in the handler of SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from nvrx_core import inprocess
from tests.harness.process.workers.record import Record

record = Record.of_environment()
SAVES_FOR = 2.0


def leave(*_: object) -> None:
    sys.exit(143)


def save(*_: object) -> None:
    record("saving")
    end = time.monotonic() + SAVES_FOR
    while time.monotonic() < end:
        time.sleep(0.01)
    record("saved")
    sys.exit(0)


@inprocess.Wrapper(soft_timeout=timedelta(seconds=15), hard_timeout=timedelta(seconds=30))
def train() -> None:
    dist.init_process_group("gloo")
    one = torch.ones(1)
    record("training")
    while True:
        dist.all_reduce(one)
        time.sleep(0.002)


@inprocess.Wrapper(soft_timeout=timedelta(seconds=15), hard_timeout=timedelta(seconds=30))
def wait() -> None:
    record("training")
    while True:
        time.sleep(0.01)


if __name__ == "__main__":
    case = os.environ["NVRX_TEST_CASE"]
    if case != "nothing":
        signal.signal(signal.SIGTERM, {"leave": leave, "save": save}[case])
    (wait if case == "save" else train)()
