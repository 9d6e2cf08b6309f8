"""A wrapped call that all ranks leave with code 17, once all have entered it."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from nvrx_core import inprocess
from tests.harness.process.workers.launcher_worker import say


@inprocess.Wrapper()
def train(call: inprocess.CallWrapper) -> None:
    dist.init_process_group("gloo")
    say("enter", iteration=call.iteration)
    dist.all_reduce(torch.ones(1))
    sys.exit(17)


train()
