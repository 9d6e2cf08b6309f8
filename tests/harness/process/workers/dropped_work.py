"""Rank 0 drops the tensor of its last collective, after the wrapped call, before that is over.

A thread of gloo frees it, and waits for the interpreter when the script ends.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

from nvrx_core import inprocess

LATE, LONG = 0.3, 1.0
"""Seconds: when rank 1 joins in; for how long rank 0 keeps the interpreter, while the thread comes to wait for it."""


def main() -> None:
    inprocess.Wrapper()(lambda: None)()
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        time.sleep(LATE)
        dist.all_reduce(torch.ones(4))
        return
    sys.setswitchinterval(100)
    dist.all_reduce(torch.ones(4), async_op=True)
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        pass


if __name__ == "__main__":
    main()
