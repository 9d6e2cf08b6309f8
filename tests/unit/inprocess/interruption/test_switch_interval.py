"""The interpreter's switch interval, lowered while a round ends."""

import sys

import pytest

from nvrx_core.inprocess.interruption.switch_interval import SHORT, STEADY, FastGilSwitching


@pytest.fixture(autouse=True)
def restored():
    found = sys.getswitchinterval()
    yield
    sys.setswitchinterval(found)


@pytest.mark.parametrize("microseconds", [201, 257, 1_003, 5_000, 12_345, 1_000_000])
def test_it_is_given_back_exactly(microseconds):
    sys.setswitchinterval((microseconds + 0.5) * 1e-6)
    found, turns = sys.getswitchinterval(), FastGilSwitching()
    turns.begin()
    assert round(sys.getswitchinterval() * 1e6) == SHORT
    turns.begin()
    turns.end()
    assert sys.getswitchinterval() == found
    turns.end()
    assert sys.getswitchinterval() == found


def test_a_value_set_meanwhile_is_kept():
    turns = FastGilSwitching()
    turns.begin()
    sys.setswitchinterval(0.003)
    turns.end()
    assert sys.getswitchinterval() == pytest.approx(0.003)


def test_a_shorter_interval_is_kept():
    sys.setswitchinterval(0.0001)
    turns = FastGilSwitching()
    turns.begin()
    assert sys.getswitchinterval() == pytest.approx(0.0001)
    turns.end()
    assert sys.getswitchinterval() == pytest.approx(0.0001)


def test_nested_intervals_restore_the_previous_value():
    found, steady, ending = sys.getswitchinterval(), FastGilSwitching(STEADY), FastGilSwitching()
    steady.begin()
    assert round(sys.getswitchinterval() * 1e6) == STEADY
    ending.begin()
    ending.end()
    assert round(sys.getswitchinterval() * 1e6) == STEADY
    steady.end()
    assert sys.getswitchinterval() == found
