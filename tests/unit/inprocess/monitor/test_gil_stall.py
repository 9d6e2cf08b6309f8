"""A rank whose threads do not run when a round ends."""

import math

import pytest

from nvrx_core.inprocess.monitor.policies import HELD_UP, GilStallPolicy, MarkRoundOver, QueryRoundEvent
from nvrx_core.liveness.hang_detector import SendSignal
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.progress.stage import Stage

BUSY = ProgressSample(iteration=0, stage=Stage.RUNNING, alive_at=0.0, watchdog_alive_at=0.0)
NOTICED = BUSY._replace(noticed=True)


@pytest.fixture
def policy():
    made = GilStallPolicy(silent=1.0, confirm=30.0)
    yield made
    made.check()


def test_a_rank_whose_threads_run_costs_the_store_nothing(policy):
    assert policy.evaluate(BUSY, now=0.9) == ()
    assert policy.deadline == 1.0
    assert policy.evaluate(NOTICED._replace(watchdog_alive_at=math.inf), now=0.9) == ()
    assert policy.deadline == math.inf


def test_while_it_is_silent_the_store_is_asked_now_and_then(policy):
    asked = [now / 100 for now in range(300) if policy.evaluate(BUSY, now=now / 100) == (QueryRoundEvent(),)]
    assert len(asked) in {8, 9}
    assert asked[0] == 1.0
    assert policy.out_by == math.inf


def test_when_the_round_is_over_it_is_signalled_until_it_notices(policy):
    assert policy.evaluate(BUSY, now=1.0) == (QueryRoundEvent(),)
    assert policy.round_over(now=1.0) == (MarkRoundOver(), SendSignal(HELD_UP))
    assert policy.evaluate(BUSY, now=1.05) == ()
    assert policy.deadline == pytest.approx(1.1)
    assert policy.evaluate(BUSY, now=1.1) == (SendSignal(HELD_UP),)
    assert policy.out_by == 31.0
    assert policy.evaluate(NOTICED._replace(stage=Stage.UNWINDING), now=1.2) == ()
    assert policy.out_by == policy.deadline == math.inf


def test_the_next_round_begins_anew(policy):
    policy.evaluate(BUSY, now=1.0)
    policy.round_over(now=1.0)
    before = policy.state(now=2.0)
    assert policy.evaluate(BUSY._replace(iteration=1), now=2.0) == (QueryRoundEvent(),)
    assert policy.state(now=2.0) != before
    assert policy.out_by == math.inf


def test_there_is_time_to_leave_the_function_whatever_the_timeouts_are():
    policy = GilStallPolicy(silent=1.0, confirm=0.1)
    policy.evaluate(BUSY, now=1.0)
    policy.round_over(now=1.0)
    assert policy.out_by == 11.0


def test_threads_that_are_held_up_after_they_have_noticed_are_helped_without_a_query(policy):
    assert policy.evaluate(NOTICED, now=1.0) == (MarkRoundOver(), SendSignal(HELD_UP))


def test_a_rank_whose_threads_run_again_is_left_to_them(policy):
    policy.evaluate(NOTICED, now=1.0)
    assert policy.evaluate(NOTICED._replace(watchdog_alive_at=1.5), now=1.6) == ()
    assert policy.out_by == math.inf
