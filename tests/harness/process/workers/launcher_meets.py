"""A worker of a launcher: rank 1 is lost between connecting to the store and creating the group; then all meet."""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist

from tests.harness.process.workers.launcher_worker import CYCLE, RANK, say

if RANK == 1 and CYCLE == 0:
    dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    say("connected")
    os.kill(os.getpid(), signal.SIGKILL)
say("start")
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
say("done", total=total.item())
