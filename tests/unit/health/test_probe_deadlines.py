"""When a check is killed, and when it is left behind."""

import math

from nvrx_core.health.probe_deadlines import ENDS_WITHIN, KillProbe, LeaveProbe, ProbeDeadlines


def test_an_overdue_check_is_killed_and_then_left_behind():
    deadlines = ProbeDeadlines(overall=100.0)
    deadlines.started(0, 5.0, now=0.0)
    deadlines.started(1, 7.0, now=0.0)
    assert deadlines.deadline == 5.0
    assert deadlines.tick(now=4.9) == ()
    assert deadlines.tick(now=5.0) == (KillProbe(0),)
    assert deadlines.deadline == 5.0 + ENDS_WITHIN
    assert deadlines.tick(now=7.0) == (LeaveProbe(0), KillProbe(1))
    deadlines.ended(1)
    assert deadlines.deadline == math.inf


def test_no_check_runs_beyond_the_overall_deadline():
    deadlines = ProbeDeadlines(overall=3.0)
    deadlines.started(0, 30.0, now=0.0)
    assert deadlines.tick(now=3.0) == (KillProbe(0),)


def test_a_check_that_has_ended_twice_is_no_error():
    deadlines = ProbeDeadlines(overall=3.0)
    deadlines.ended(0)
    assert deadlines.tick(now=9.0) == ()
