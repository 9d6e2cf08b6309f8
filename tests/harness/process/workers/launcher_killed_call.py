"""A worker whose wrapped call was killed in cycle 0, and has left its keys; in cycle 1 rank 0 fails before any call."""

from __future__ import annotations

import json
import os
import sys
import time

from nvrx_core.store.keys import LauncherKeys

RANK, CYCLE = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

if (RANK, CYCLE) == (1, 0):
    import torch.distributed as dist

    host, _, port = os.environ["NVRX_STORE_ENDPOINT"].rpartition(":")
    store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    keys = LauncherKeys(os.environ["TORCHELASTIC_RUN_ID"], 0)
    store.set(keys.announce(), json.dumps({"generation": 0, "min_world_size": 1, "pid": os.getpid()}))
    store.set(keys.entered(), json.dumps({"generation": 0, "iteration": 1, "lost": [0]}))
    sys.exit(1)
if (RANK, CYCLE) == (0, 1):
    sys.exit(1)
time.sleep(60 if CYCLE == 0 else 5)
