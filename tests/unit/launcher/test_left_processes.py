"""What workers have left is named before it is killed, where that is asked for, and what survives it afterwards."""

from __future__ import annotations

import logging
import os
from contextlib import closing

import pytest
from nvrx_launcher.left_processes import LeftProcesses
from nvrx_launcher.loop import EventLoop


class Processes:
    """Processes of a job, of which some survive SIGKILL."""

    def __init__(self, *pids: int) -> None:
        self.pids, self.survivors = set(pids), set[int]()

    def left(self) -> set[int]:
        return set(self.pids)

    def kill_left(self) -> list[int]:
        killed, self.pids = sorted(self.pids), self.pids & self.survivors
        return killed


@pytest.mark.parametrize("names", [False, True])
def test_what_is_killed_is_named_once_and_what_survives_it_when_the_workers_start(
    caplog: pytest.LogCaptureFixture, names: bool
) -> None:
    """When the node becomes ready, and before its workers start; then the next cycle has left something."""
    me, gone = os.getpid(), 1 << 30
    processes = Processes(me, gone)
    processes.survivors = {me}
    caplog.set_level(logging.WARNING)
    with closing(EventLoop()) as loop:
        left = LeftProcesses(loop, processes, 15.0, names=names)  # type: ignore[arg-type]
        left.kill()
        left.kill()
        processes.pids, processes.survivors = {gone}, set()
        left.kill()
    found = [record.message.replace(str(me), "ME") for record in caplog.records]
    if not names:
        assert found == []
        return
    assert found[0].startswith("workers have left processes, which are killed: pid ME (")
    assert found[0].endswith(f", pid {gone} (it has ended)")
    assert found[1].startswith("of what workers have left, pid ME survives SIGKILL (state R")
    assert found[2:] == [f"workers have left processes, which are killed: pid {gone} (it has ended)"]
