"""The fault injector itself, as far as it leaves the process alive; the other tests inject the rest."""

from __future__ import annotations

import signal
import time

import pytest

from nvrx_core.testing import FaultKind, InjectedFault, Point, Schedule, inject
from tests.harness.process.oracle import assert_nothing_lost, restart

from .conftest import Launch


def test_a_schedule_reads_what_it_writes() -> None:
    text = "0:1:5=exception, 1:0:3=kill"
    schedule = Schedule.parse(" 1:0:3=kill,0:1:5=exception, ")
    assert str(schedule) == text
    assert Schedule.parse(text) == schedule
    assert schedule.due(Point(initial_rank=1, iteration=0, step=3)) is FaultKind.KILL
    assert schedule.due(Point(initial_rank=1, iteration=1, step=3)) is None
    assert schedule.of_iteration(1) == {Point(0, 1, 5): FaultKind.EXCEPTION}
    assert len(schedule) == 2


@pytest.mark.parametrize("text", ["1:0=kill", "1:0:x=kill", "1:0:3=explode", "1:0:3", "1:0:3=kill, 1:0:3=term"])
def test_a_malformed_schedule_is_refused_by_its_entry(text: str) -> None:
    with pytest.raises(ValueError, match=text.rsplit(",", maxsplit=1)[-1].strip()):
        Schedule.parse(text)


def test_a_fault_is_stamped_before_it_is_injected() -> None:
    stamps: list[float] = []
    before = time.monotonic()
    with pytest.raises(InjectedFault):
        Schedule.parse("0:0:0=exception").inject(Point(0, 0, 0), stamp=stamps.append)
    (stamp,) = stamps
    assert before <= stamp <= time.monotonic()


def test_nothing_is_injected_where_nothing_is_due() -> None:
    stamps: list[float] = []
    Schedule().inject(Point(0, 0, 0), stamp=stamps.append)
    assert stamps == []


@pytest.mark.parametrize("kind", ["hang_atomic", "livelock", "stagnation", "hang_store", "no such kind"])
def test_a_fault_that_lacks_what_it_needs_is_refused_before_it_is_stamped(kind: str) -> None:
    stamps: list[float] = []
    with pytest.raises(ValueError, match=r"needs (call|store)=|no such kind"):
        inject(kind, stamp=stamps.append)
    assert stamps == []


@pytest.mark.parametrize("kind", ["memory_error", "async_exception", "signal_exception"])
def test_an_exception_of_any_origin_restarts_everyone(launch: Launch, kind: str) -> None:
    job = launch({(1, 0, 3): kind}, collective=True).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[1]))


def test_a_sigint_leaves_with_its_rank(launch: Launch) -> None:
    job = launch({(1, 0, 3): "int"}, collective=True).finish()
    assert_nothing_lost(job, restart("BASE_EXCEPTION", by=[1], lost=[1]), codes={1: -signal.SIGINT})


@pytest.mark.parametrize("kind", ["thread_exception", "monitor_kill", "monitor_stop"])
def test_a_fault_that_leaves_the_function_running_restarts_no_rank(launch: Launch, kind: str) -> None:
    job = launch({(1, 0, 1): kind}, endless=False, steps=20).finish()
    assert_nothing_lost(job)
