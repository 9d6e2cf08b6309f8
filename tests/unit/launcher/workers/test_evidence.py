"""The evidence of a node's ranks: what monitors answer in time, and nothing of those that do not."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.workers.evidence import NodeEvidence

from nvrx_core.fault.hang_report import HangReport
from nvrx_core.fault_tolerance.wire import Connection, Listener, WireError


class Monitors:
    """Monitors of two ranks, and what their launcher has got."""

    def __init__(self, folder: Path) -> None:
        self.loop = EventLoop()
        self.listeners = [Listener(folder / f"rank-{number}.socket") for number in range(2)]
        self.evidence = NodeEvidence(self.loop, [listener.path for listener in self.listeners])
        self.answers = list[dict[int, HangReport]]()

    def ask(self) -> list[Connection]:
        self.evidence.ask(self.take, until=1.4)
        found = [listener.accept() for listener in self.listeners]
        return [connection for connection in found if connection is not None]

    def take(self, reports: Mapping[int, HangReport]) -> None:
        self.answers.append(dict(reports))

    def turn(self) -> None:
        self.loop.turn(time.monotonic())


@pytest.fixture
def monitors(tmp_path: Path) -> Iterator[Monitors]:
    made = Monitors(tmp_path)
    yield made
    made.evidence.close()
    made.loop.close()
    for listener in made.listeners:
        listener.close()  # a second time is no error


def test_the_reports_of_all_ranks_are_one_answer(monitors: Monitors) -> None:
    reports = {number: HangReport(rank=number, initial_rank=number) for number in range(2)}
    for number, connection in enumerate(monitors.ask()):
        assert connection.receive()[0] == {"type": "evidence", "until": 1.4}
        connection.send({"type": "ok", "report": reports[number].encode()})
        connection.close()
        monitors.turn()
    assert [sorted(each) for each in monitors.answers] == [[0, 1]]
    assert monitors.evidence.deadline == math.inf


@pytest.mark.parametrize("answer", [{"report": ""}, {"report": "no report"}, {"report": 5}, {}, None])
def test_a_monitor_that_has_no_report_is_not_waited_for(monitors: Monitors, answer: dict[str, object] | None) -> None:
    for connection in monitors.ask():
        if answer is not None:
            connection.send(answer)
        connection.close()
    monitors.turn()
    assert monitors.answers == [{}]


def test_what_is_late_is_missing(monitors: Monitors) -> None:
    first, second = monitors.ask()
    first.send({"report": HangReport(rank=0, initial_rank=0).encode()})
    monitors.turn()
    monitors.evidence.tick(now=monitors.evidence.deadline - 0.01)
    assert not monitors.answers
    monitors.evidence.tick(now=monitors.evidence.deadline)
    assert [list(each) for each in monitors.answers] == [[0]]
    with pytest.raises(WireError):
        second.send({"report": HangReport(rank=1, initial_rank=1).encode()})
    for connection in (first, second):
        connection.close()


def test_without_monitors_the_answer_is_empty_at_once(monitors: Monitors) -> None:
    for listener in monitors.listeners:
        listener.close()
    monitors.evidence.ask(monitors.take, until=1.4)
    assert monitors.answers == [{}]
