"""When guardians are asked, and replaced."""

import math

from nvrx_launcher.guardian_policy import AskGuardian, EndGuardian, GuardianPolicy, StartGuardian


def policy_at_0(count: int = 1) -> GuardianPolicy:
    policy = GuardianPolicy(count)
    for number in range(count):
        policy.started(number, now=0.0)
    return policy


def test_each_guardian_is_asked_and_answers():
    policy = policy_at_0(2)
    assert policy.deadline == 5.0
    assert policy.tick(now=4.0) == ()
    assert policy.tick(now=5.0) == (AskGuardian(0), AskGuardian(1))
    for number in range(2):
        policy.answered(number, now=5.1)
    assert policy.deadline == 10.1


def test_one_that_does_not_answer_is_ended_and_another_one_started_at_once():
    policy = policy_at_0()
    policy.tick(now=5.0)
    assert policy.tick(now=10.0) == (EndGuardian(0, "it has not answered for 5 s"),)
    assert policy.lost(0, now=10.0) == 0.0
    assert policy.tick(now=10.0) == (StartGuardian(0, "the one before is lost"),)


def test_those_that_are_lost_early_are_replaced_after_longer_and_longer_pauses():
    policy = policy_at_0()
    pauses, now = list[float](), 1.0
    for _ in range(9):
        pauses.append(policy.lost(0, now=now))
        assert policy.tick(now=now - 0.5) == ()
        now = policy.deadline
        assert policy.tick(now=now) == (StartGuardian(0, "the one before is lost"),)
        policy.started(0, now=now)
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert policy.lost(0, now=now + 10.0) == 0.0


def test_an_answer_that_comes_after_the_end_of_a_guardian_is_ignored():
    policy = policy_at_0()
    policy.lost(0, now=20.0)
    policy.answered(0, now=20.0)
    assert policy.tick(now=20.0) == (StartGuardian(0, "the one before is lost"),)


def test_none_is_due_while_none_was_started():
    assert GuardianPolicy(1).deadline == math.inf
