"""Output of a worker as lines."""

import math

import pytest
from nvrx_launcher.workers.output import MAX_LINE, SHOWN_AFTER, Lines


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        ([b"one\ntwo\n"], [b"one", b"two"]),
        ([b"o", b"ne\n\ntwo\n"], [b"one", b"", b"two"]),
        ([b"one\r\ntwo\r", b"\nthree\n"], [b"one", b"two", b"three"]),
        ([b"\r 0%|", b"\r 50%|", b"\r 100%|\n"], [b" 0%|", b" 50%|", b" 100%|"]),
        ([b" 0%|\r", b" 50%|\r", b" 100%|\n"], [b" 0%|", b" 50%|", b" 100%|"]),
        ([b"\n\r\n"], [b"", b""]),
    ],
)
def test_lines_end_at_newlines_and_carriage_returns(parts, lines):
    made = Lines()
    assert [line for part in parts for line in made.feed(part, now=0.0)] == lines
    assert made.flush() == []
    assert made.deadline == math.inf


def test_a_line_that_is_not_ended_is_shown_after_a_while():
    made = Lines()
    assert made.feed(b"done\nLoading...", now=5.0) == [b"done"]
    assert made.deadline == 5.0 + SHOWN_AFTER
    assert made.tick(now=5.1) == []
    assert made.tick(now=5.2) == [b"Loading..."]
    assert (made.deadline, made.tick(now=9.0)) == (math.inf, [])
    assert made.feed(b"done\n", now=10.0) == [b"done"]


def test_a_carriage_return_before_a_pause_belongs_to_no_line():
    made = Lines()
    made.feed(b"50%\r", now=0.0)
    assert made.flush() == [b"50%"]
    made.feed(b"\r", now=1.0)
    assert made.flush() == []


def test_a_line_without_end_is_shown_in_parts():
    made = Lines()
    assert made.feed(b"x" * (MAX_LINE + 1), now=0.0) == [b"x" * (MAX_LINE + 1)]
    assert made.flush() == []
