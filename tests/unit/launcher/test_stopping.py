"""When workers that are being ended are killed, and when what survives that is given up."""

import math
import signal

import pytest
from nvrx_launcher.departure import signalled, survived
from nvrx_launcher.node_actions import Cause, EndLaunch, SendMessage, StopWorkers
from nvrx_launcher.node_policy import NodePolicy
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, MessageKind
from nvrx_launcher.stopping import Stopping, StopStep

RUN = Decision(DecisionKind.RUN, 0, "", members=(Member(0, 0, 2),), master_addr="a", master_port=1)
STOP = Decision(DecisionKind.STOP, 0, "rank 7 has failed")
WHY = "pid 17876 survives SIGKILL (state D)"


@pytest.fixture
def stopping():
    return Stopping(30.0)


def test_what_a_signal_does_not_end_is_killed_and_what_survives_is_given_up(stopping):
    assert stopping.deadline == math.inf
    stopping.signalled(25.0, now=100.0)
    assert stopping.tick(now=124.9) is None
    assert stopping.tick(now=125.0) is StopStep.KILL
    assert stopping.deadline == 155.0
    assert stopping.tick(now=155.0) is StopStep.GIVE_UP
    assert stopping.deadline == math.inf


def test_a_further_signal_never_gives_more_time(stopping):
    stopping.signalled(25.0, now=100.0)
    stopping.signalled(25.0, now=110.0)
    assert stopping.deadline == 125.0
    stopping.signalled(2.0, now=112.0)
    assert stopping.deadline == 114.0
    stopping.signalled(math.inf, now=113.0)
    stopping.signalled(math.inf, now=120.0)
    stopping.signalled(25.0, now=121.0)
    assert (stopping.kill_at, stopping.give_up_at) == (math.inf, 143.0)


def test_workers_that_have_ended_are_neither_killed_nor_given_up(stopping):
    stopping.signalled(25.0, now=100.0)
    stopping.ended()
    assert stopping.tick(now=1e9) is None


@pytest.fixture
def policy():
    made = NodePolicy(2, workers_stop_timeout=15.0, term_timeout=25.0)
    made.joined(0)
    made.decided(RUN)
    return made


def test_a_second_signal_leaves_two_seconds_and_a_third_none(policy):
    stops = [policy.signalled(signum)[-1] for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM)]
    assert [(stop.signum, stop.grace) for stop in stops] == [(15, 25.0), (2, 2.0), (9, math.inf)]
    policy.worker_exited(0, -9)
    assert policy.worker_exited(1, -9)[-1].code == 128 + signal.SIGTERM


def test_a_second_signal_never_leaves_more_than_the_first():
    made = NodePolicy(1, workers_stop_timeout=15.0, term_timeout=0.5)
    made.joined(0)
    made.decided(Decision(DecisionKind.RUN, 0, "", members=(Member(0, 0, 1),)))
    assert [made.signalled(15)[-1].grace for _ in range(2)] == [0.5, 0.5]


def test_a_node_whose_workers_survive_leaves_the_job(policy):
    policy.decided(STOP)
    policy.worker_exited(0, -9)
    assert policy.survived(survived(WHY, is_needed=False)) == (
        SendMessage(MessageKind.LEFT, 0, WHY), EndLaunch(1, Cause.SURVIVED, WHY)
    )  # fmt: skip
    policy.check()
    assert policy.survived(survived(WHY, is_needed=False)) == ()
    assert policy.worker_exited(1, -9) == ()


def test_a_launcher_that_the_others_need_stays_without_workers(policy):
    policy.decided(STOP)
    assert policy.survived(survived(WHY, is_needed=True)) == (SendMessage(MessageKind.LEFT, 0, WHY),)
    policy.check()
    assert policy.worker_exited(1, -9) == ()
    assert policy.decided(Decision(DecisionKind.END, 1, "done"))[-1] == EndLaunch(0, Cause.DECISION, "done")


def test_the_code_of_a_signal_stays(policy):
    policy.leave(signalled(signal.SIGTERM))
    assert policy.survived(survived(WHY, is_needed=False))[-1].code == 128 + signal.SIGTERM


def test_workers_that_are_not_being_ended_are_not_given_up(policy):
    assert policy.survived(survived(WHY, is_needed=False)) == ()
    assert isinstance(policy.decided(STOP)[-1], StopWorkers)


@pytest.fixture
def left():
    """What workers leave behind when they are done: it may end by itself, is asked to, and is killed."""
    made = Stopping()
    made.left(15.0, now=100.0)
    return made


def test_what_is_left_is_asked_to_end_and_killed_after_the_grace(left):
    assert left.tick(now=100.9) is None
    assert left.tick(now=101.0) is StopStep.ASK
    assert left.deadline == 116.0
    assert left.tick(now=115.9) is None
    assert left.tick(now=116.0) is StopStep.KILL
    assert left.deadline == math.inf


def test_what_ends_by_itself_is_not_asked(left):
    left.ended()
    assert left.tick(now=1e9) is None


def test_what_a_later_cycle_leaves_begins_anew(left):
    left.tick(now=101.0)
    left.ended()
    left.left(15.0, now=102.0)
    assert left.tick(now=103.0) is StopStep.ASK
