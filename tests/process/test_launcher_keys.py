"""What a wrapped job writes for its launcher, and that a completed one leaves no key in a store that outlives it."""

from __future__ import annotations

import json
import signal
from typing import Any

import torch.distributed as dist

from nvrx_core.store.keys import LauncherKeys
from tests.harness.process import host
from tests.harness.process.oracle import assert_no_process_left
from tests.harness.process.workers.launched import LAST, LEAST

from .conftest import Launch

KEYS = LauncherKeys("job", 0)


def test_the_launchers_keys_name_each_round_and_are_deleted(prepare: Launch) -> None:
    job = prepare()
    job.start_store()
    address, _, port = str(job.endpoint).rpartition(":")
    control = dist.TCPStore(address, int(port), is_master=False, wait_for_workers=False)

    def told(key: str) -> Any:
        return json.loads(control.get(key)) if control.check([key]) else None

    def told_of(iteration: int, pid: int) -> bool:
        announcement = {"generation": 0, "min_world_size": LEAST, "pid": pid}
        entered = {"generation": 0, "iteration": iteration, "lost": [0] if first else []}
        return (told(KEYS.announce()), told(KEYS.entered())) == (announcement, entered)

    job.start("tests.harness.process.workers.launched")
    for iteration, first in enumerate((0, 0, 1, 1)):  # the initial rank that is rank 0
        pid = job.pids[first]
        assert host.eventually(lambda i=iteration, p=pid: told_of(i, p), 20), (iteration, told(KEYS.entered()))
        if iteration == LAST:
            assert host.eventually(lambda: not [key for key in control.list_keys() if "/0/0/0/" in key], 20)
        control.set(f"end/{iteration}", "")
    job.finish_ranks(20)
    assert [key for key in control.list_keys() if key.startswith("nvrx/")] == []
    job.finish()
    assert job.codes == {0: -signal.SIGKILL, 1: 0, 2: 0}
    assert_no_process_left(job)
