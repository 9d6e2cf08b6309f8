"""The phases of a restart always add up to the whole."""

import math

import pytest
from hypothesis import given, strategies as st

from nvrx_core.events.phases import MARKS, PHASES, phases_from_marks

TIMES = st.floats(0.0, 1e6, allow_nan=False)


def test_a_phase_lies_between_two_marks():
    marks = {name: float(i * i) for i, name in enumerate(MARKS)}
    assert phases_from_marks(marks) == {name: float(2 * i + 1) for i, name in enumerate(PHASES)}


def test_a_mark_before_its_predecessor_counts_as_equal_to_it():
    phases = phases_from_marks({"occurred": 1.0, "announced": 2.0, "noticed": 1.5, "aborted": 2.5, "entered": 3.0})
    assert [phases[name] for name in ("detect", "notify", "abort")] == [1.0, 0.0, 0.5]


def test_a_mark_after_the_last_counts_as_equal_to_it():
    phases = phases_from_marks({"occurred": 1.0, "announced": 9.0, "entered": 3.0})
    assert (phases["detect"], math.fsum(phases.values())) == (2.0, 2.0)


def test_missing_marks_take_no_time():
    phases = phases_from_marks({"occurred": 1.0, "decided": 2.0, "entered": 4.0, "unknown": 77.0})
    assert {name: seconds for name, seconds in phases.items() if seconds} == {"barrier": 1.0, "enter": 2.0}


@pytest.mark.parametrize("marks", [{}, {"noticed": 5.0}, {"occurred": 5.0, "entered": 4.0}])
def test_there_may_be_nothing_to_tell(marks):
    assert phases_from_marks(marks) == dict.fromkeys(PHASES, 0.0)


@given(st.dictionaries(st.sampled_from(MARKS[1:-1]), TIMES), TIMES, TIMES)
def test_phases_sum_up_to_the_whole(between, one, other):
    occurred, entered = sorted((one, other))
    phases = phases_from_marks({**between, "occurred": occurred, "entered": entered})
    assert tuple(phases) == PHASES
    assert min(phases.values()) >= 0.0
    assert math.isclose(math.fsum(phases.values()), entered - occurred, abs_tol=1e-6)
