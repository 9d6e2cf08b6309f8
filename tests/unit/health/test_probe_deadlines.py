"""When a check is killed, and when it is left behind."""

import math

from nvrx_core.health.probe_deadlines import ENDS_WITHIN, KillProbe, LeaveProbe, ProbeDeadlines


def test_an_overdue_check_is_killed_and_then_left_behind():
    deadlines = ProbeDeadlines(overall=100.0, now=0.0)
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
    deadlines = ProbeDeadlines(overall=3.0, now=0.0)
    deadlines.started(0, 30.0, now=0.0)
    assert deadlines.tick(now=3.0) == (KillProbe(0),)


def test_a_check_that_has_ended_twice_is_no_error():
    deadlines = ProbeDeadlines(overall=3.0, now=0.0)
    deadlines.ended(0)
    assert deadlines.tick(now=9.0) == ()


def test_a_node_that_was_stopped_gives_each_check_its_time_again():
    deadlines = ProbeDeadlines(overall=10.0, now=0.0)
    deadlines.started(0, 1.0, now=0.0)
    assert deadlines.tick(now=1.0) == (KillProbe(0),)
    deadlines.started(1, 5.0, now=0.0)
    deadlines.woken(now=2.0)
    assert deadlines.deadline == 1.0 + ENDS_WITHIN, "late by less than a pause"
    deadlines.woken(now=100.0)
    assert deadlines.tick(now=100.0) == (LeaveProbe(0),), "killed before"
    assert deadlines.deadline == 105.0
    assert deadlines.tick(now=105.0) == (KillProbe(1),)
