"""What waits for a destination of output, and what is lost when it takes nothing."""

import math

import pytest
from nvrx_launcher.backlog import STALLED_AFTER, Backlog, LostOutput


@pytest.fixture
def backlog():
    return Backlog(100, reserve=20)


def test_bytes_are_taken_in_order_and_in_parts(backlog):
    for each in (b"abc", b"def", b"ghi"):
        backlog.put(each, now=0.0)
    assert backlog.peek(5) == b"abcde"
    backlog.wrote(4, now=0.0)
    assert (backlog.peek(100), backlog.size) == (b"efghi", 5)
    backlog.wrote(5, now=0.0)
    assert (backlog.peek(100), backlog.size) == (b"", 0)
    assert backlog.take_loss() is None


def test_what_finds_no_room_is_lost_and_said_when_there_is_room(backlog):
    backlog.put(b"x" * 90, now=0.0)
    backlog.put(b"y" * 11, now=0.0)
    assert backlog.take_loss() is None
    backlog.wrote(65, now=7.0)
    assert backlog.take_loss() == LostOutput(11, 7.0)
    assert backlog.take_loss() is None


def test_one_that_is_larger_than_the_limit_fits_if_nothing_waits(backlog):
    backlog.put(b"x" * 300, now=0.0)
    assert backlog.size == 300


def test_lines_of_the_launcher_have_room_that_output_does_not_take(backlog):
    backlog.put(b"x" * 100, now=0.0)
    backlog.put(b"y" * 20, now=0.0, is_own=True)
    backlog.put(b"z", now=0.0, is_own=True)
    assert backlog.size == 120
    assert backlog.take_loss(is_final=True) == LostOutput(121, 0.0)


def test_output_is_not_read_while_much_waits_until_the_destination_stalls(backlog):
    backlog.put(b"x" * 49, now=1.0)
    assert not backlog.must_wait(now=1.0)
    backlog.put(b"x", now=1.5)
    assert backlog.must_wait(now=1.5)
    assert backlog.stalls_at == 1.0 + STALLED_AFTER
    backlog.wrote(0, now=1.9)
    assert backlog.must_wait(now=2.0)
    assert not backlog.must_wait(now=1.9 + STALLED_AFTER)
    assert not backlog.has_room
    backlog.wrote(25, now=2.0)
    assert backlog.has_room


def test_one_that_must_be_complete_is_waited_for_without_end():
    backlog = Backlog(100, is_lossy=False)
    backlog.put(b"x" * 50, now=0.0)
    assert backlog.must_wait(now=1e9)
    assert backlog.stalls_at == math.inf


def test_what_a_destination_refuses_is_lost(backlog):
    backlog.put(b"x" * 40, now=0.0)
    backlog.failed(40, now=0.5)
    assert (backlog.size, backlog.take_loss()) == (0, LostOutput(40, 0.0))


def test_at_the_end_what_waits_is_lost_and_nothing_more_is_taken(backlog):
    backlog.put(b"x" * 40, now=0.0)
    assert backlog.take_loss(is_final=True) == LostOutput(40, 0.0)
    backlog.put(b"x", now=0.0)
    backlog.wrote(40, now=9.0)
    assert backlog.size == 0
    assert backlog.take_loss(is_final=True) is None
