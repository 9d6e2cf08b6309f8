"""The template process that has imported what a live state and sharded models need besides, a second of CPU time: it
forks the ranks of their tests.

Run as a program, like `tests.harness.process.template`.
"""

from __future__ import annotations

import socket
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.harness.process.template import become, begin, freeze_imports, preload, serve

__all__: list[str] = []

if __name__ == "__main__":
    begin()
    del sys.path[1]  # this folder, whose names are others
    warnings.simplefilter("ignore")
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.optim.swa_utils

    from nvrx_core import inprocess

    preload()
    _ = (
        inprocess.LiveState,
        torch._dynamo.reset,
        torch.distributed.fsdp.fully_shard,
        torch.optim.swa_utils.AveragedModel,
    )
    freeze_imports()
    if (chosen := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        become(chosen)
