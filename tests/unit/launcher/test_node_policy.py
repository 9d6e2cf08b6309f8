"""A node whose rank asks that it takes no further part."""

import signal

import pytest
from nvrx_launcher.departure import excluded, signalled
from nvrx_launcher.node_actions import Cause, EndLaunch, JoinAgain, SendMessage, StopWorkers
from nvrx_launcher.node_policy import NodePolicy
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, MessageKind

RUN = Decision(DecisionKind.RUN, 0, "", members=(Member(0, 0, 1),), master_addr="a", master_port=1)
WHY = "rank 0 has asked for ExcludeThisNode: a bad GPU"


def left(cycle=0):
    return SendMessage(MessageKind.LEFT, cycle, WHY)


@pytest.fixture
def policy():
    made = NodePolicy(1, workers_stop_timeout=15.0, term_timeout=1800.0)
    made.joined(0)
    made.decided(RUN)
    return made


def test_its_workers_are_stopped_and_its_launcher_fails(policy):
    assert (policy.rank_of(0), policy.is_stopping) == (0, False)
    stop = StopWorkers(signal.SIGTERM, 15.0, Cause.EXCLUDED, WHY)
    assert policy.leave(excluded(WHY, is_needed=False)) == (left(), stop)
    assert policy.is_stopping
    assert policy.leave(excluded(WHY, is_needed=False)) == ()
    assert policy.worker_exited(0, -15) == (left(), EndLaunch(1, Cause.EXCLUDED, WHY))
    assert policy.leave(excluded(WHY, is_needed=False)) == ()


def test_a_launcher_that_the_others_need_stays_and_starts_nothing(policy):
    assert policy.leave(excluded(WHY, is_needed=True))[0] == left()
    assert policy.worker_exited(0, -15) == ()
    assert policy.joined(3) == ()
    assert policy.lease_expired("no answer") == ()
    end = Decision(DecisionKind.END, 4, "all workers are done")
    assert policy.decided(end)[-1] == EndLaunch(0, Cause.DECISION, "all workers are done")


def test_the_reason_of_an_earlier_end_stays(policy):
    policy.leave(signalled(signal.SIGINT))
    policy.leave(excluded(WHY, is_needed=False))
    assert policy.worker_exited(0, -2)[-1].code == 130


@pytest.mark.parametrize(
    "kind", [DecisionKind.NOTE, DecisionKind.WARNING, DecisionKind.HANG_SUSPECTED, DecisionKind.HANG_JUDGED]
)
def test_what_is_for_people_changes_nothing(policy, kind):
    assert policy.decided(Decision(kind, 0, "text", members=(Member(0, 0, 0),))) == ()


def test_a_node_that_is_cut_off_has_no_number_until_it_joins_again(policy):
    assert policy.node == 0
    (stop,) = policy.lease_expired("no answer")
    assert (stop.signum, policy.node) == (signal.SIGKILL, -1)
    assert policy.worker_exited(0, -9) == (
        SendMessage(MessageKind.LEFT, 0, "it was cut off"),
        JoinAgain("it was cut off"),
    )
    policy.joined(3)
    assert policy.node == 3


def test_a_worker_that_was_given_up_is_no_failure_when_it_ends_at_last(policy):
    assert policy.is_at_work(0)
    policy.leave(excluded(WHY, is_needed=True))
    assert not policy.is_at_work(0)
    policy.survived(excluded("pid 7 survives SIGKILL", is_needed=True))
    assert not policy.is_at_work(0)
    assert policy.worker_exited(0, -9) == ()
