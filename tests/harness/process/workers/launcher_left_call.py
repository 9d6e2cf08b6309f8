"""A wrapped call that all ranks leave, once all have entered it: by exit code 17, or by giving up."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from nvrx_core import inprocess
from tests.harness.process.workers.launcher_worker import say


@inprocess.Wrapper(initialize=inprocess.initialize.RetryController(max_iterations=1))
def train(call: inprocess.CallWrapper) -> None:
    dist.init_process_group("gloo")
    say("enter", iteration=call.iteration)
    dist.all_reduce(torch.ones(1))
    if sys.argv[1] == "gives_up":
        raise ValueError("injected")
    sys.exit(17)


train()
