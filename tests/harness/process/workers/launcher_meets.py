"""A worker of a launcher: `launcher_meets.py LOST`; all meet.

The rank LOST, if it is one, is lost in the first cycle between connecting to the store and creating the group.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist

from tests.harness.process.workers.launcher_worker import CYCLE, RANK, say

if (str(RANK), CYCLE) == (sys.argv[1], 0):
    dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    say("connected")
    os.kill(os.getpid(), signal.SIGKILL)
say("start")
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
say("done", total=total.item())
