"""What workers leave behind when they are done: it may end by itself, is asked to, and is killed."""

import math

from nvrx_launcher.left_policy import Ending, LeftPolicy


def test_what_is_left_is_asked_to_end_and_killed_after_the_grace():
    policy = LeftPolicy(15.0)
    assert policy.deadline == math.inf
    policy.left(now=100.0)
    assert policy.tick(now=100.9) is Ending.NOTHING
    assert policy.tick(now=101.0) is Ending.ASK
    assert policy.deadline == 116.0
    assert policy.tick(now=115.9) is Ending.NOTHING
    assert policy.tick(now=116.0) is Ending.KILL
    assert policy.deadline == math.inf


def test_what_ends_by_itself_is_not_asked():
    policy = LeftPolicy(15.0)
    policy.left(now=0.0)
    policy.gone()
    assert policy.tick(now=1e9) is Ending.NOTHING


def test_a_later_cycle_begins_anew():
    policy = LeftPolicy(15.0)
    policy.left(now=0.0)
    policy.tick(now=1.0)
    policy.gone()
    policy.left(now=2.0)
    assert policy.tick(now=3.0) is Ending.ASK
