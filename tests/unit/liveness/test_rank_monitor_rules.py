"""What a rank monitor does about its rank: asks, waits for the slower ones, ends it."""

from __future__ import annotations

import math

import pytest

from nvrx_core.liveness.hang_detector import (
    ASK_AGAIN,
    COLLECTIVE_EXCUSES,
    FIRST_SAMPLE_GRACE,
    Excuse,
    HangDetector,
    KillRank,
    QueryPeers,
    RankMonitorRules,
    TerminateRank,
)
from nvrx_core.progress.limits import Limit, LimitKind, ProgressSample
from nvrx_core.progress.stage import Stage

INTERVAL, GRACE, TIMEOUT = 5.0, 15.0, 100.0
RULES = RankMonitorRules(INTERVAL, GRACE)
NOTHING = ProgressSample(iteration=0, stage=Stage.OUTSIDE, alive_at=0.0)


def sample(heartbeat_at=0.0, timeout=TIMEOUT):
    return NOTHING._replace(limit=Limit(LimitKind.HEARTBEAT, heartbeat_at, timeout))


@pytest.fixture
def detector():
    """A detector that has seen its rank move."""
    made = HangDetector(RULES)
    assert made.evaluate(sample(), now=0.0) == ()
    return made


def ended(detector):
    """A detector that has ended its rank."""
    assert detector.evaluate(sample(), now=TIMEOUT) == (QueryPeers(),)
    detector.answered(None, now=TIMEOUT)
    (action,) = detector.evaluate(sample(), now=TIMEOUT)
    assert isinstance(action, TerminateRank)
    return detector


def test_it_looks_again_when_the_rank_may_be_overdue(detector):
    assert detector.evaluate(sample(), now=98.0) == ()
    assert detector.deadline == TIMEOUT


def test_it_looks_again_before_a_limit_can_expire_that_comes_up_later(detector):
    detector.evaluate(NOTHING._replace(max_sample_interval=0.25), now=10.0)
    assert detector.deadline == 10.25


def test_it_looks_again_after_its_interval(detector):
    detector.evaluate(NOTHING, now=10.0)
    assert detector.deadline == 15.0


def test_a_hung_rank_is_ended_with_the_reason(detector):
    detector.evaluate(sample(), now=TIMEOUT + 1)
    detector.answered(None, now=TIMEOUT + 1)
    (action,) = detector.evaluate(sample(), now=TIMEOUT + 1)
    assert action == TerminateRank("no heartbeat for 101 s (timeout 100 s)")


def test_a_rank_that_moves_while_the_peers_are_asked_is_not_ended(detector):
    detector.evaluate(sample(), now=TIMEOUT)
    detector.answered(None, now=TIMEOUT)
    assert detector.evaluate(sample(heartbeat_at=TIMEOUT), now=TIMEOUT) == ()


def test_the_peers_are_asked_anew_about_the_next_hang(detector):
    test_a_rank_that_moves_while_the_peers_are_asked_is_not_ended(detector)
    (action,) = detector.evaluate(sample(heartbeat_at=TIMEOUT), now=2 * TIMEOUT)
    assert isinstance(action, QueryPeers)


def test_a_rank_that_waits_for_a_slower_one_is_excused_for_a_while(detector):
    detector.evaluate(sample(), now=TIMEOUT)
    assert detector.answered(Excuse.PEER_BEHIND, now=TIMEOUT)
    assert detector.evaluate(sample(), now=TIMEOUT) == ()
    assert detector.deadline == TIMEOUT + ASK_AGAIN
    assert detector.evaluate(sample(), now=TIMEOUT + ASK_AGAIN / 2) == ()
    assert detector.deadline == TIMEOUT + ASK_AGAIN
    assert detector.evaluate(sample(), now=TIMEOUT + ASK_AGAIN) == (QueryPeers(),)


def test_an_excuse_ends_when_the_rank_is_overdue_for_as_long_as_its_timeout(detector):
    now = TIMEOUT
    while now < 2 * TIMEOUT:
        assert detector.evaluate(sample(), now=now) == (QueryPeers(),)
        assert detector.answered(Excuse.PEER_BEHIND, now=now)
        assert detector.evaluate(sample(), now=now) == ()
        assert detector.deadline > now
        now = detector.deadline
    assert now == 2 * TIMEOUT
    detector.evaluate(sample(), now=now)
    assert not detector.answered(Excuse.PEER_BEHIND, now=now)
    (action,) = detector.evaluate(sample(), now=now)
    assert isinstance(action, TerminateRank)


def test_a_monitor_that_looks_late_takes_a_second_sample_too(detector):
    assert detector.evaluate(sample(), now=9 * TIMEOUT) == (QueryPeers(),)
    detector.answered(Excuse.PEER_BEHIND, now=9 * TIMEOUT)
    assert detector.evaluate(sample(heartbeat_at=9 * TIMEOUT), now=9 * TIMEOUT) == ()


def test_a_short_timeout_is_asked_about_more_often(detector):
    detector.evaluate(sample(timeout=1.0), now=1.0)
    detector.answered(Excuse.PEER_BEHIND, now=1.0)
    detector.evaluate(sample(timeout=1.0), now=1.0)
    assert detector.deadline == 1.1


@pytest.mark.parametrize(("timeout", "excused"), [(TIMEOUT, COLLECTIVE_EXCUSES), (1.0, 1.0)])
def test_waiting_in_a_collective_excuses_for_a_short_time(detector, timeout, excused):
    detector.evaluate(sample(timeout=timeout), now=timeout)
    assert detector.answered(Excuse.IN_COLLECTIVE, now=timeout + excused / 2)
    assert not detector.answered(Excuse.IN_COLLECTIVE, now=timeout + excused)
    assert detector.answered(Excuse.PEER_BEHIND, now=timeout + excused * 0.9)


def test_a_rank_that_survives_its_signal_is_killed_every_second(detector):
    detector = ended(detector)
    assert detector.deadline == TIMEOUT + GRACE
    assert detector.evaluate(sample(), now=TIMEOUT + GRACE - 1) == ()
    (action,) = detector.evaluate(sample(), now=TIMEOUT + GRACE)
    assert action == KillRank("still there, more than 15 s after the termination signal")
    assert detector.deadline == TIMEOUT + GRACE + 1
    assert detector.evaluate(sample(), now=TIMEOUT + GRACE + 0.5) == ()
    assert detector.deadline == TIMEOUT + GRACE + 1
    assert detector.evaluate(sample(), now=TIMEOUT + GRACE + 1) == (action,)


def test_an_ended_rank_is_not_judged_anew(detector):
    assert ended(detector).evaluate(sample(heartbeat_at=TIMEOUT + 1), now=TIMEOUT + 2) == ()


@pytest.mark.parametrize("stage", ["new", "excused", "ended"])
def test_a_detector_goes_on_from_its_state(detector, stage):
    if stage == "excused":
        test_a_rank_that_waits_for_a_slower_one_is_excused_for_a_while(detector)
    elif stage == "ended":
        detector = ended(detector)
    now = TIMEOUT + 50
    again = HangDetector.from_state(RULES, detector.state(now=now), now=now)
    again.check()
    assert again.state(now=now) == detector.state(now=now)
    assert again.evaluate(sample(), now=now) == detector.evaluate(sample(), now=now)


def test_a_new_detector_wants_a_sample_at_once():
    assert HangDetector(RULES).deadline == -math.inf


@pytest.mark.parametrize(("timeout", "excused"), [(TIMEOUT, FIRST_SAMPLE_GRACE), (0.5, 0.25)])
def test_a_rank_that_is_overdue_at_first_sight_is_excused_for_a_moment(timeout, excused):
    detector = HangDetector(RULES)
    assert detector.evaluate(sample(timeout=timeout), now=150.0) == ()
    assert detector.deadline == 150.0 + excused
    assert detector.evaluate(sample(heartbeat_at=150.0, timeout=timeout), now=150.0 + excused / 2) == ()
    assert detector.evaluate(sample(timeout=timeout), now=150.0 + excused) != ()
