"""What a rank writes on its page, and what it measures, in virtual time against figures worked by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nvrx_core.fault_tolerance import RankMonitorClientError, recorder
from nvrx_core.fault_tolerance.recorder import NotMonitored, Recorder, nanoseconds
from nvrx_core.fault_tolerance.timeouts import Measured
from nvrx_core.progress.fields import MAX_SECTIONS, NAME_BYTES, RECENT_RUNS
from nvrx_core.progress.page import Page, ProgressField, SectionField
from nvrx_core.progress.sampling import recent_runs

SECOND = 1_000_000_000
START = 100 * SECOND


class Clock:
    """Monotonic nanoseconds."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def at(self, seconds: float) -> None:
        self.now = START + int(seconds * SECOND)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(recorder, "_now", made)
    return made


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page(1)
    made[ProgressField.ATTACHED_AT] = START
    yield made
    made.close()


@pytest.fixture
def rank(page: Page, clock: Clock) -> Recorder:
    return Recorder(page)


def test_the_first_heartbeat_counts_from_the_start_and_later_ones_from_the_last(rank, clock):
    for seconds in (3, 5, 9, 10):
        clock.at(seconds)
        rank.heartbeat()
    assert rank.measured() == Measured(initial=3.0, subsequent=4.0, out_of_section=10.0)
    assert (rank.page[ProgressField.HEARTBEATS], rank.page[ProgressField.HEARTBEAT_AT]) == (4, clock.now)


def test_a_section_counts_from_opening_to_closing_and_the_longest_run_counts(rank, clock):
    for opened, closed in ((1, 2), (4, 9), (10, 12)):
        clock.at(opened)
        rank.open("step")
        clock.at(closed)
        rank.close("step")
    assert rank.measured() == Measured(out_of_section=2.0, sections={"step": 5.0})


def test_time_in_any_section_is_not_time_out_of_sections(rank, clock):
    for seconds, act, name in (
        (1, rank.open, "outer"), (3, rank.open, "inner"), (8, rank.close, "outer"), (20, rank.close, "inner"),
    ):  # fmt: skip
        clock.at(seconds)
        act(name)
    clock.at(27)
    assert rank.measured() == Measured(out_of_section=7.0, sections={"outer": 7.0, "inner": 17.0})


def test_a_section_that_is_still_open_is_not_measured(rank, clock):
    clock.at(2)
    rank.open("step")
    clock.at(50)
    assert rank.measured() == Measured(out_of_section=2.0, sections={"step": 0.0})


def test_a_section_that_is_abandoned_is_closed_and_not_measured(rank, clock):
    for opened, closed, close in ((1, 3, rank.close), (4, 64, rank.abandon)):
        clock.at(opened)
        rank.open("step")
        clock.at(closed)
        close("step")
    assert rank.open_sections() == []
    assert rank.measured().sections == {"step": 2.0}
    for name in ("step", "other"):
        with pytest.raises(RankMonitorClientError, match="it is not open"):
            rank.abandon(name)


def test_beginning_anew_closes_sections_and_keeps_what_was_measured(rank, clock):
    clock.at(2)
    rank.heartbeat()
    rank.open("step")
    rank.reset()
    assert rank.open_sections() == []
    page = rank.page
    assert [page[field] for field in (ProgressField.HEARTBEAT_AT, ProgressField.HEARTBEATS)] == [0, 0]
    assert page.words[page.sections()["step"] + SectionField.COUNT] == 0
    assert page[ProgressField.SAMPLED_AT] == 0
    assert page[ProgressField.FIRST_HEARTBEAT] == 2 * SECOND
    rank.open("step")
    clock.now = page[ProgressField.ATTACHED_AT] + 3 * SECOND
    rank.heartbeat()
    assert page[ProgressField.FIRST_HEARTBEAT] == 3 * SECOND
    assert (page[ProgressField.HEARTBEATS], page[ProgressField.LONGEST_HEARTBEAT]) == (1, 0)


def test_bytecode_that_was_sampled_long_ago_counts_as_executed_when_the_rank_begins_anew(rank):
    rank.page[ProgressField.SAMPLED_AT] = 1
    rank.reset()
    assert rank.page[ProgressField.SAMPLED_AT] == rank.page[ProgressField.ATTACHED_AT] > 1


def test_a_section_that_is_open_cannot_be_opened_nor_one_that_is_closed_be_closed(rank):
    with pytest.raises(RankMonitorClientError, match=r"end_section\('step'\): it is not open; no section is open"):
        rank.close("step")
    rank.open("step")
    with pytest.raises(RankMonitorClientError, match=r"start_section\('step'\): it is open already; end it first"):
        rank.open("step")
    with pytest.raises(RankMonitorClientError, match=r"end_section\('save'\): it is not open; open are 'step'"):
        rank.close("save")
    rank.close("step")
    with pytest.raises(RankMonitorClientError, match="no section is open"):
        rank.close("step")


def test_a_strict_rank_opens_declared_sections_only(rank):
    rank.declare({"step": 5.0})
    rank.strict = True
    rank.open("step")
    with pytest.raises(RankMonitorClientError, match="strict_sections is on, and rank_section_timeouts has 'step'"):
        rank.open("data")


def test_the_section_beyond_the_last_has_no_room(rank):
    for number in range(MAX_SECTIONS):
        rank.open(f"{number}")
    with pytest.raises(RankMonitorClientError, match=r"start_section\('more'\): no room .* at most 64"):
        rank.open("more")
    rank.close("0")
    rank.open("0")


@pytest.mark.parametrize("name", ["", "x" * (NAME_BYTES + 1), "a\0b", "\ud800", 7])
def test_an_invalid_section_name_is_refused_and_takes_no_slot(rank, name):
    with pytest.raises(RankMonitorClientError, match=r"start_section\("):
        rank.open(name)
    assert rank.page[ProgressField.SECTION_COUNT] == 0
    rank.open("x" * NAME_BYTES)


def test_what_was_written_by_another_recorder_of_the_page_is_known(rank, clock):
    clock.at(2)
    rank.open("step")
    clock.at(5)
    rank.heartbeat()
    again = Recorder(rank.page)
    again.close("step")
    clock.at(9)
    again.heartbeat()
    assert again.measured() == Measured(5.0, 4.0, out_of_section=4.0, sections={"step": 3.0})
    assert rank.page[ProgressField.HEARTBEATS] == 2


def test_a_child_of_fork_writes_on_a_page_of_its_own(rank, page):
    rank.open("step")
    rank.disown()
    rank.heartbeat()
    rank.close("step")
    rank.open("data")
    assert (rank.page[ProgressField.HEARTBEATS], page[ProgressField.HEARTBEATS]) == (1, 0)
    assert page.sections().keys() == {"step"}
    assert page.words[page.sections()["step"] + SectionField.OPENED_AT] > 0
    rank.page.close()


def test_a_call_without_a_rank_monitor_is_an_error():
    signs = NotMonitored()
    for call in (signs.heartbeat, lambda: signs.open("step"), lambda: signs.close("step")):
        with pytest.raises(RankMonitorClientError, match=r"call init_workload_monitoring\(\) first"):
            call()


def test_any_timeout_fits_in_a_word():
    assert [nanoseconds(seconds) for seconds in (None, 0.0, 1e-12, 1.5)] == [0, 1, 1, 1_500_000_000]
    assert nanoseconds(1e300) < 1 << 63


def test_the_last_runs_of_a_section_are_on_the_page_until_the_next_ones_take_their_places(rank, clock):
    for number in range(1, 101):
        clock.at(10 * number)
        rank.open("step")
        clock.at(10 * number + number / 100)
        rank.close("step")
    assert recent_runs(rank.page, "step", 3) == (100, [0.98, 0.99, 1.0])
    over, longest = recent_runs(rank.page, "step", 1000)
    assert (over, len(longest), longest[0]) == (100, RECENT_RUNS - 1, 0.7)


def test_a_run_that_goes_on_or_was_abandoned_has_no_duration(rank, clock):
    assert recent_runs(rank.page, "step", 5) == (0, [])
    for number in (1, 2, 3):
        clock.at(10 * number)
        rank.open("step")
        clock.at(10 * number + number)
        (rank.abandon if number == 2 else rank.close)("step")
    rank.open("step")
    assert recent_runs(rank.page, "step", 5) == (3, [1.0, 3.0])


def test_a_rank_that_begins_anew_has_no_runs(rank, clock):
    rank.open("step")
    clock.at(1)
    rank.close("step")
    rank.reset()
    assert recent_runs(rank.page, "step", 5) == (0, [])
