"""What a rank monitor does about its rank: asks, waits for the slower ones, ends it."""

from __future__ import annotations

import math

import pytest

from nvrx_core.fault_tolerance.policy import ASK_AGAIN, FIRST_LOOK, KillRank, MonitorPolicy, QueryPeers, TerminateRank
from nvrx_core.progress.limits import Limit, LimitKind, RankSample, SectionSample

INTERVAL, GRACE, TIMEOUT = 5.0, 15.0, 100.0
LIMIT = Limit(LimitKind.HEARTBEAT, 0.0, TIMEOUT)


def sample(heartbeat_at=0.0, timeout=TIMEOUT):
    return RankSample(attached_at=0.0, heartbeat_at=heartbeat_at, heartbeat_timeout=timeout)


@pytest.fixture
def policy():
    """A policy that has seen its rank move."""
    made = MonitorPolicy(INTERVAL, GRACE)
    assert made.evaluate(sample(), now=0.0) == ()
    return made


def ended(policy):
    """A policy that has ended its rank."""
    assert policy.evaluate(sample(), now=TIMEOUT) == (QueryPeers(LIMIT),)
    policy.peers_behind(LIMIT, False, now=TIMEOUT)
    (action,) = policy.evaluate(sample(), now=TIMEOUT)
    assert isinstance(action, TerminateRank)
    return policy


def test_it_looks_again_when_the_rank_may_be_overdue(policy):
    assert policy.evaluate(sample(), now=98.0) == ()
    assert policy.deadline == TIMEOUT


def test_it_looks_again_before_a_limit_can_expire_that_comes_up_later(policy):
    step = SectionSample("step", None, 0.5, 0)
    policy.evaluate(RankSample(attached_at=0.0, sections=(step,)), now=10.0)
    assert policy.deadline == 10.25


def test_it_looks_again_after_its_interval(policy):
    policy.evaluate(RankSample(attached_at=0.0), now=10.0)
    assert policy.deadline == 15.0


def test_a_hung_rank_is_ended_with_the_reason(policy):
    policy.evaluate(sample(), now=TIMEOUT + 1)
    policy.peers_behind(LIMIT, False, now=TIMEOUT + 1)
    (action,) = policy.evaluate(sample(), now=TIMEOUT + 1)
    assert action == TerminateRank(LIMIT, "no heartbeat for 101 s (timeout 100 s)")


def test_a_rank_that_moves_while_the_peers_are_asked_is_not_ended(policy):
    policy.evaluate(sample(), now=TIMEOUT)
    policy.peers_behind(LIMIT, False, now=TIMEOUT)
    assert policy.evaluate(sample(heartbeat_at=TIMEOUT), now=TIMEOUT) == ()


def test_the_peers_are_asked_anew_about_the_next_hang(policy):
    test_a_rank_that_moves_while_the_peers_are_asked_is_not_ended(policy)
    (action,) = policy.evaluate(sample(heartbeat_at=TIMEOUT), now=2 * TIMEOUT)
    assert isinstance(action, QueryPeers)


def test_a_rank_that_waits_for_a_slower_one_is_excused_for_a_while(policy):
    policy.evaluate(sample(), now=TIMEOUT)
    policy.peers_behind(LIMIT, True, now=TIMEOUT)
    assert policy.deadline == TIMEOUT + ASK_AGAIN
    assert policy.evaluate(sample(), now=TIMEOUT + ASK_AGAIN / 2) == ()
    assert policy.deadline == TIMEOUT + ASK_AGAIN
    assert policy.evaluate(sample(), now=TIMEOUT + ASK_AGAIN) == (QueryPeers(LIMIT),)


def test_an_excuse_ends_when_the_rank_is_overdue_for_as_long_as_its_timeout(policy):
    now = TIMEOUT
    while now < 2 * TIMEOUT:
        assert policy.evaluate(sample(), now=now) == (QueryPeers(LIMIT),)
        policy.peers_behind(LIMIT, True, now=now)
        assert policy.deadline > now
        now = policy.deadline
    assert now == 2 * TIMEOUT
    policy.evaluate(sample(), now=now)
    policy.peers_behind(LIMIT, True, now=now)
    (action,) = policy.evaluate(sample(), now=now)
    assert isinstance(action, TerminateRank)


def test_a_monitor_that_looks_late_takes_a_second_sample_too(policy):
    assert policy.evaluate(sample(), now=9 * TIMEOUT) == (QueryPeers(LIMIT),)
    policy.peers_behind(LIMIT, True, now=9 * TIMEOUT)
    assert policy.evaluate(sample(heartbeat_at=9 * TIMEOUT), now=9 * TIMEOUT) == ()


def test_a_short_timeout_is_asked_about_more_often(policy):
    limit = Limit(LimitKind.HEARTBEAT, 0.0, 1.0)
    policy.evaluate(sample(timeout=1.0), now=1.0)
    policy.peers_behind(limit, True, now=1.0)
    assert policy.deadline == 1.1


def test_a_rank_that_survives_its_signal_is_killed_every_second(policy):
    policy = ended(policy)
    assert policy.deadline == TIMEOUT + GRACE
    assert policy.evaluate(sample(), now=TIMEOUT + GRACE - 1) == ()
    (action,) = policy.evaluate(sample(), now=TIMEOUT + GRACE)
    assert action == KillRank("still there, more than 15 s after the termination signal")
    assert policy.deadline == TIMEOUT + GRACE + 1
    assert policy.evaluate(sample(), now=TIMEOUT + GRACE + 0.5) == ()
    assert policy.deadline == TIMEOUT + GRACE + 1
    assert policy.evaluate(sample(), now=TIMEOUT + GRACE + 1) == (action,)


def test_an_ended_rank_is_not_judged_anew(policy):
    assert ended(policy).evaluate(sample(heartbeat_at=TIMEOUT + 1), now=TIMEOUT + 2) == ()


@pytest.mark.parametrize("stage", ["new", "excused", "ended"])
def test_a_policy_goes_on_from_its_state(policy, stage):
    if stage == "excused":
        test_a_rank_that_waits_for_a_slower_one_is_excused_for_a_while(policy)
    elif stage == "ended":
        policy = ended(policy)
    now = TIMEOUT + 50
    again = MonitorPolicy.from_state(INTERVAL, GRACE, policy.state(now=now), now=now)
    again.check()
    assert again.state(now=now) == policy.state(now=now)
    assert again.evaluate(sample(), now=now) == policy.evaluate(sample(), now=now)


def test_a_new_policy_wants_a_sample_at_once():
    assert MonitorPolicy(INTERVAL, GRACE).deadline == -math.inf


@pytest.mark.parametrize(("timeout", "excused"), [(TIMEOUT, FIRST_LOOK), (0.5, 0.25)])
def test_a_rank_that_is_overdue_at_first_sight_is_excused_for_a_moment(timeout, excused):
    policy = MonitorPolicy(INTERVAL, GRACE)
    assert policy.evaluate(sample(timeout=timeout), now=150.0) == ()
    assert policy.deadline == 150.0 + excused
    assert policy.evaluate(sample(heartbeat_at=150.0, timeout=timeout), now=150.0 + excused / 2) == ()
    assert policy.evaluate(sample(timeout=timeout), now=150.0 + excused) != ()
