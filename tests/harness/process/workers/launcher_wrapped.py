"""A wrapped training under a launcher: `launcher_wrapped.py RANKS`, which are killed as soon as they have entered it.

The others train until the file at NVRX_TEST_GATE is there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from nvrx_core import inprocess
from tests.harness.process.workers.launcher_worker import CYCLE, say

ME = os.environ["RANK"]
GATE = Path(os.environ["NVRX_TEST_GATE"])
TARGETS = sys.argv[1].split(",")


def await_targets() -> None:
    """Wait until all targets are out of the collective: one that dies in it would end it for the others."""
    (GATE.parent / f"target-{CYCLE}-{ME}").touch()
    while not all((GATE.parent / f"target-{CYCLE}-{target}").exists() for target in TARGETS):
        time.sleep(0.01)


@inprocess.Wrapper()
def train(call: inprocess.CallWrapper) -> int:
    dist.init_process_group("gloo")
    say("enter", iteration=call.iteration, world=dist.get_world_size())
    dist.all_reduce(torch.ones(1))
    if ME in TARGETS:
        await_targets()
        os.kill(os.getpid(), signal.SIGKILL)
    end = torch.zeros(1)
    while not end.item():
        time.sleep(0.01)  # the tests kill ranks: gloo may wait for ever for a send to one that dies just then
        end.fill_(GATE.exists())
        dist.all_reduce(end)
    dist.destroy_process_group()
    return call.iteration


say("done", iteration=train())
