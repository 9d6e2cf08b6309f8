"""When the program of the control store is given up."""

from __future__ import annotations

import pytest
from nvrx_launcher.store_watch import SILENT_AFTER, START_TIMEOUT, STOPPED_AFTER, StoreWatch


def given_up(watch, *, is_stopped=False, within=1000.0):
    """When a program is given up that gives no more signs of life, and why."""
    while watch.deadline < within:
        now = watch.deadline
        if why := watch.tick(now=now, is_stopped=is_stopped):
            return now, why
    return None


@pytest.mark.parametrize(
    ("serves", "is_stopped", "after", "why"),
    [
        (True, False, SILENT_AFTER, "has not answered for 7 s"),
        (True, True, STOPPED_AFTER, "is stopped by a signal, since 4 s"),
        (False, True, STOPPED_AFTER, "is stopped by a signal, since 4 s"),
        (False, False, START_TIMEOUT, "has not started within 60 s"),
    ],
)
def test_a_silent_program_is_given_up(serves, is_stopped, after, why):
    watch = StoreWatch(now=100.0)
    if serves:
        watch.heard(now=100.0)
    assert given_up(watch, is_stopped=is_stopped) == (100.0 + after, why)


def test_a_program_that_gives_signs_of_life_is_not_asked_for():
    watch = StoreWatch(now=0.0)
    for now in range(100):
        watch.heard(now=float(now))
        assert watch.deadline > now + 1


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_pause_of_the_launcher_itself_does_not_count(is_stopped):
    """Both were suspended; the launcher goes on first."""
    watch = StoreWatch(now=0.0)
    watch.heard(now=10.0)
    assert watch.tick(now=500.0, is_stopped=is_stopped) == ""
    watch.heard(now=500.1)
    assert given_up(watch) == (507.1, "has not answered for 7 s")
