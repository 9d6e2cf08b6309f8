"""When a monitor process asks for the end of a round, and what it does about a rank that has not heard of it."""

import math

import pytest

from nvrx_core.inprocess.monitor.policies import Question, RenewConnections, UnheardRoundPolicy
from nvrx_core.inprocess.protocol.timeouts import HangTimeouts
from nvrx_core.liveness.hang_detector import TerminateRank
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.progress.stage import Stage

HARD = 80.0
EVERY, RENEWS_AFTER, ENDS_AFTER = 20.0, 10.0, 40.0
UNHEARD = "the event of iteration 3 has not reached the rank"


def policy_of(hard):
    timeouts = HangTimeouts(60.0, hard, watchdog=1.0, heartbeat=1.0, heartbeat_timeout=30.0)
    return UnheardRoundPolicy(
        every=timeouts.unheard_query_interval,
        renews_after=timeouts.unheard_renewal,
        ends_after=timeouts.unheard_end,
    )


def sample(stage=Stage.RUNNING, *, iteration=3, noticed=False, watchdog=math.inf, protected=True):
    return ProgressSample(
        iteration=iteration, stage=stage, alive_at=0.0, noticed=noticed, watchdog_alive_at=watchdog, protected=protected
    )


def asked(policy, what, until):
    """The questions of a policy that is evaluated at its deadlines."""
    questions, now = [], 0.0
    while now <= until:
        question = policy.question(what, now=now)
        questions += [(now, question)] if question else []
        now = policy.deadline
    return questions


@pytest.mark.parametrize(
    ("what", "question"),
    [
        (sample(), Question.EVENT),
        (sample(Stage.WAITING), Question.EVENT),
        (sample(Stage.ARRIVED, noticed=True), Question.DECISION),
        (sample(Stage.ARRIVED, iteration=-1), Question.DECISION),
    ],
    ids=["in the function", "a reserve", "at the barrier", "at the first barrier"],
)
def test_the_store_is_asked_four_times_in_the_hard_timeout(what, question):
    policy = policy_of(HARD)
    assert asked(policy, what, HARD) == [(EVERY * turn, question) for turn in (1, 2, 3, 4)]
    assert policy.actions(what, now=HARD) == ()


@pytest.mark.parametrize(
    "what",
    [sample(noticed=True), sample(Stage.WAITING, iteration=-1), sample(Stage.UNWINDING), sample(watchdog=-EVERY)],
    ids=["it has heard", "on entry", "busy", "its threads do not run"],
)
def test_a_rank_that_listens_for_nothing_costs_no_question(what):
    policy = policy_of(HARD)
    assert (asked(policy, what, HARD), policy.deadline) == ([], math.inf)


def test_without_a_hard_timeout_nothing_is_asked():
    assert asked(policy_of(math.inf), sample(), 1e9) == []


def unheard(policy, what=None):
    """A policy at 20 s, which has just found that the round is over."""
    policy.question(what or sample(), now=0.0)
    assert policy.question(what or sample(), now=EVERY) is Question.EVENT
    policy.is_over(now=EVERY)
    return policy


def test_a_deaf_rank_opens_its_connections_again_and_is_ended_within_the_hard_timeout():
    policy, now, done = unheard(policy_of(HARD)), EVERY, []
    while now < math.inf:
        assert policy.question(sample(), now=now) is None
        done += [(now, action) for action in policy.actions(sample(), now=now)]
        now = policy.deadline
    (renewed, first), (ended, second) = done
    assert (renewed, first) == (EVERY + RENEWS_AFTER, RenewConnections(f"{UNHEARD} for {RENEWS_AFTER:g} s"))
    assert ended == EVERY + ENDS_AFTER < HARD
    assert second == TerminateRank(f"{UNHEARD} for {ENDS_AFTER:g} s, its connections are silent")


@pytest.mark.parametrize("hears", [sample(noticed=True), sample(iteration=4), sample(Stage.UNWINDING)])
def test_a_rank_that_hears_of_it_after_all_is_left_alone(hears):
    policy = unheard(policy_of(HARD))
    policy.question(hears, now=EVERY + 1)
    assert policy.actions(hears, now=EVERY + ENDS_AFTER) == ()


def test_a_rank_without_hang_protection_is_not_ended():
    exempt = sample(protected=False)
    policy = unheard(policy_of(HARD), exempt)
    assert policy.actions(exempt, now=EVERY + RENEWS_AFTER) == (RenewConnections(f"{UNHEARD} for {RENEWS_AFTER:g} s"),)
    assert policy.actions(exempt, now=EVERY + ENDS_AFTER) == ()
    assert policy.deadline == EVERY + ENDS_AFTER + EVERY
