"""What monitors tell a launcher, over its socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nvrx_launcher.control import Control
from nvrx_launcher.loop import EventLoop

from nvrx_core.fault_tolerance.data import WorkloadControlRequest
from nvrx_core.fault_tolerance.peers import RECOVERED, HungRank, Progress
from nvrx_core.fault_tolerance.wire import connect


class Told:
    """What the launcher was told of hangs."""

    def __init__(self) -> None:
        self.news = list[object]()

    def requested(self, rank: int, request: WorkloadControlRequest) -> None:
        self.news.append(request)

    def hung(self, report: HungRank, answer: Callable[[], None]) -> None:
        self.news.append(report)

    def recovered(self, rank: int) -> None:
        self.news.append(rank)

    def asked_for_progress(self, answer: Callable[[Sequence[Progress]], None]) -> None:
        self.news.append(answer)


def test_a_monitor_takes_back_that_it_ends_its_rank(tmp_path: Path) -> None:
    loop, told, report = EventLoop(), Told(), HungRank(3, 4711, "no heartbeat")
    control = Control(loop, tmp_path / "launcher.ipc", told)
    for message in (report.to_json(), {"type": RECOVERED, "rank": 3}):
        with connect(control.path, within=10.0) as connection:
            connection.send(message)
            before, deadline = len(told.news), time.monotonic() + 30.0
            while len(told.news) == before and time.monotonic() < deadline:
                loop.turn(deadline)
    assert told.news == [report, 3]
    control.close()
