"""What monitors tell a launcher, over its socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
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


REQUESTED = {"type": "workload_control", "action": "ExcludeThisNode", "rank": 3}


class Defective(Told):
    """A launcher whose handlers have a defect."""

    def requested(self, rank: int, request: WorkloadControlRequest) -> None:
        raise KeyError(rank)

    def hung(self, report: HungRank, answer: Callable[[], None]) -> None:
        answer()
        raise ValueError(report.rank)


def serve(path: Path, told: Told, message: dict[str, Any]) -> bool:
    """Send a message to a launcher's socket, and let it be handled; returns whether the connection is left open."""
    control = Control(EventLoop(), path / "launcher.ipc", told)
    try:
        with connect(control.path, within=10.0) as connection:
            connection.send(message)
            control.catch_up()
            return not connection.has_message()
    finally:
        control.close()


@pytest.mark.parametrize(
    ("message", "defect"), [(REQUESTED, KeyError), (HungRank(3, 4711, "no heartbeat").to_json(), ValueError)]
)
def test_a_defect_of_a_handler_is_not_taken_for_a_malformed_message(
    tmp_path: Path, message: dict[str, Any], defect: type[Exception]
) -> None:
    with pytest.raises(defect):
        serve(tmp_path, Defective(), message)


@pytest.mark.parametrize(
    "message", [REQUESTED | {"action": "explode"}, REQUESTED | {"rank": "3"}, REQUESTED | {"type": "?"}, {}]
)
def test_a_malformed_message_closes_its_connection_only(tmp_path: Path, message: dict[str, Any]) -> None:
    told = Told()
    assert not serve(tmp_path, told, message)
    assert told.news == []
