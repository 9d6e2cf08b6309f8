"""What a rank monitor and a wrapped call are told, in which order, and that nothing of it ends the training."""

from __future__ import annotations

import logging

import pytest
from nvrx_lightning.monitoring.progress_reporter import WARMUP_STEPS, ProgressReporter
from nvrx_lightning.monitoring.sections import SECTIONS

from nvrx_core.fault_tolerance import RankMonitorClientError

LOG = logging.getLogger("test")


class Told:
    """A monitor and a call, which note what they are told."""

    def __init__(self) -> None:
        self.lines, self.is_lost = list[str](), False

    def send_heartbeat(self) -> None:
        self._note("beat")

    def start_section(self, section: str) -> None:
        self._note(f"open {section}")

    def end_section(self, section: str) -> None:
        self._note(f"close {section}")

    def abandon_section(self, section: str) -> None:
        self._note(f"abandon {section}")

    def ping(self) -> None:
        self.lines.append("ping")

    def suspend_pings(self) -> None:
        self.lines.append("suspend")

    def progress(self, step: int, *, watched: bool = True) -> None:
        assert not watched, "a validation run has no steps"
        self.lines.append(f"progress {step}")

    def _note(self, line: str) -> None:
        if self.is_lost:
            raise RankMonitorClientError("lost")
        self.lines.append(line)


@pytest.fixture
def told() -> Told:
    return Told()


def set_up(told: Told) -> ProgressReporter:
    reporter = ProgressReporter(told, None, SECTIONS, log=LOG)
    reporter.enter("setup")
    reporter.leave("setup")
    told.lines.clear()
    return reporter


def test_the_first_heartbeat_follows_the_setup(told: Told) -> None:
    reporter = ProgressReporter(told, None, SECTIONS, log=LOG)
    reporter.enter("setup")
    reporter.beat()
    reporter.enter("data")
    reporter.leave("data")
    reporter.leave("setup")
    assert told.lines == ["open setup", "open data", "close data", "close setup", "beat"]


def test_a_heartbeat_precedes_each_section_and_follows_it(told: Told) -> None:
    reporter = set_up(told)
    reporter.enter("step")
    reporter.leave("step")
    assert told.lines == ["beat", "open step", "close step", "beat"]


def test_a_section_is_opened_once_and_closed_once(told: Told) -> None:
    reporter = ProgressReporter(told, None, SECTIONS, heartbeats=False, log=LOG)
    for _ in range(2):
        reporter.enter("step")
    reporter.enter("checkpointing")
    for _ in range(2):
        reporter.leave("step")
    reporter.leave_all()
    assert told.lines == ["open step", "open checkpointing", "close step", "close checkpointing"]


def test_what_an_exception_ends_is_not_measured_and_no_heartbeat_follows(told: Told) -> None:
    reporter = set_up(told)
    reporter.enter("validation")
    reporter.enter("step")
    told.lines.clear()
    for _ in range(2):
        reporter.abandon("step")
    reporter.end()
    assert told.lines == ["abandon step", "abandon validation"]


def test_a_section_that_a_new_iteration_has_closed_is_forgotten(told: Told) -> None:
    reporter = set_up(told)
    reporter.enter("step")
    told.is_lost = True
    reporter.end()
    told.is_lost = False
    reporter.enter("step")
    assert told.lines[-1] == "open step"


def test_what_is_not_in_use_is_not_opened(told: Told) -> None:
    reporter = ProgressReporter(told, None, frozenset({"step"}), heartbeats=False, log=LOG)
    reporter.enter("data")
    reporter.leave("data")
    assert told.lines == []


@pytest.mark.parametrize("at", ["beat", "enter", "leave"])
def test_a_lost_monitor_ends_nothing(told: Told, caplog: pytest.LogCaptureFixture, at: str) -> None:
    reporter = set_up(told)
    if at == "leave":
        reporter.enter("step")
    told.is_lost = True
    if at == "beat":
        reporter.beat()
    if at == "enter":
        reporter.enter("step")
    reporter.leave("step")
    reporter.enter("step")
    reporter.leave("step")
    reporter.leave_all()
    assert [record.message for record in caplog.records] == [
        "the progress of this training is no longer reported to the rank monitor: lost"
    ]


def test_a_call_is_pinged_in_steps_after_the_warm_up(told: Told) -> None:
    reporter = ProgressReporter(None, told, SECTIONS, log=LOG)
    for step in range(1, WARMUP_STEPS + 2):
        reporter.enter("step")
        reporter.leave("step")
        reporter.progress(step)
    warmup = [line for step in range(1, WARMUP_STEPS + 1) for line in ("suspend", f"progress {step}")]
    assert told.lines == [*warmup, "ping", "suspend", "progress 6"]
