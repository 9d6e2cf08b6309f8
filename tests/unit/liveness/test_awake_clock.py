"""An observer's own pauses are not charged to those whom it observes."""

import math

import pytest
from hypothesis import given, strategies as st

from nvrx_core.liveness.awake_clock import MAX_PAUSES, SLACK, AwakeClock

PAUSE = 12.0


@pytest.fixture
def clock():
    return AwakeClock()


@pytest.fixture
def paused(clock):
    """A clock that was due to wake at 10 and woke after a pause."""
    assert clock.woke(10.0, now=10.0 + PAUSE) == PAUSE
    return clock


def test_an_observer_that_wakes_in_time_was_not_paused(clock):
    for due, now in ((10.0, 9.0), (10.0, 10.0), (12.0, 12.0 + SLACK / 2)):
        assert clock.woke(due, now=now) == 0.0
    assert clock.at(20.0) == clock.when(20.0) == 20.0


def test_a_pause_does_not_count(paused):
    assert paused.at(30.0) - paused.at(5.0) == 25.0 - PAUSE
    assert paused.at(10.0) == paused.at(15.0) == paused.at(10.0 + PAUSE) == 10.0
    assert paused.when(paused.at(30.0)) == 30.0


def test_intervals_outside_a_pause_keep_their_length(paused):
    assert paused.at(5.0) == 5.0
    assert paused.at(40.0) - paused.at(30.0) == 10.0


def test_infinite_moments_stay_infinite(paused):
    assert paused.at(math.inf) == math.inf
    assert paused.at(-math.inf) == -math.inf


def test_a_pause_seen_twice_counts_once(paused):
    assert paused.woke(10.0, now=10.5 + PAUSE) == 0.0
    assert paused.paused == PAUSE


def test_only_recent_pauses_are_kept_apart(clock):
    for turn in range(2 * MAX_PAUSES):
        clock.woke(10.0 * turn, now=10.0 * turn + 4.0)
    now = 10.0 * (2 * MAX_PAUSES)
    assert clock.paused == 4.0 * 2 * MAX_PAUSES
    assert clock.at(now) - clock.at(now - 20.0) == 12.0


@given(
    sleeps=st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 20.0)), max_size=20),
    moments=st.tuples(st.floats(-10.0, 900.0), st.floats(-10.0, 900.0)),
)
def test_awake_time_advances_with_the_clock_or_not_at_all(sleeps, moments):
    clock, now, pauses = AwakeClock(), 0.0, 0.0
    for planned, late in sleeps:
        due, now = now + planned, now + planned + late
        pauses += clock.woke(due, now=now)
    first, last = min(moments), max(moments)
    assert -1e-6 <= clock.at(last) - clock.at(first) <= last - first + 1e-6
    assert clock.at(now) == pytest.approx(now - pauses)
    assert clock.when(clock.at(now)) == pytest.approx(now)
