"""The template process that has imported Lightning as well, which takes seconds: it forks the ranks of these tests.

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
    warnings.simplefilter("ignore")
    import nvrx_lightning
    import torch.distributed.algorithms.ddp_comm_hooks
    import torch.distributed.fsdp
    import torch.optim

    from tests.harness.lightning.workers import fit

    preload()
    _ = (
        fit,
        nvrx_lightning.InProcessDDPStrategy,
        nvrx_lightning.FaultToleranceCallback,
        torch.optim.AdamW,
        torch.distributed.fsdp.fully_shard,
        torch.distributed.algorithms.ddp_comm_hooks,
    )
    freeze_imports()
    if (chosen := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        become(chosen)
