"""What the launcher of one node does when its workers end."""

from __future__ import annotations

import signal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from nvrx_launcher.restart_policy import Cause, EndJob, RestartPolicy, StartWorkers, StopWorkers, WorkerFailure

WORKERS = 3


def policy(max_restarts=1):
    made = RestartPolicy(WORKERS, max_restarts, stop_signal=signal.SIGTERM, stop_grace=15.0, signal_grace=1800.0)
    assert made.start() == (StartWorkers(0, Cause.START),)
    return made


def test_a_job_ends_when_all_workers_are_done():
    made = policy()
    assert [made.worker_exited(rank, 0) for rank in range(2)] == [(), ()]
    assert made.worker_exited(2, 0) == (EndJob(0, Cause.DONE, "all workers are done"),)


def test_a_failure_stops_the_others_and_restarts_all():
    made = policy()
    stop = StopWorkers(signal.SIGTERM, 15.0, Cause.WORKER_FAILED, "local rank 1 has failed")
    assert made.worker_exited(1, -9) == (stop,)
    assert made.failures == [WorkerFailure(1, -9)]
    assert made.worker_exited(0, -15) == ()
    assert made.worker_exited(2, 0) == (StartWorkers(1, Cause.WORKER_FAILED),)
    assert made.failures == []


def test_the_last_worker_may_be_the_one_that_fails():
    made = policy()
    for rank in range(2):
        made.worker_exited(rank, 0)
    assert made.worker_exited(2, 3) == (StartWorkers(1, Cause.WORKER_FAILED),)


@pytest.mark.parametrize(
    ("max_restarts", "reason"),
    [(0, "a worker failed with --max-restarts 0"), (1, "a worker failed after 1 restarts")],
)
def test_a_job_fails_when_its_restarts_are_spent(max_restarts, reason):
    made = policy(max_restarts)
    for _ in range(max_restarts + 1):
        actions = [action for rank in range(WORKERS) for action in made.worker_exited(rank, 1)]
    assert actions[-1] == EndJob(1, Cause.WORKER_FAILED, reason)


def test_a_signal_is_passed_on_and_ends_the_job():
    made = policy()
    (stop,) = made.signalled(signal.SIGINT)
    assert (stop.signum, stop.grace, stop.cause) == (signal.SIGINT, 1800.0, Cause.SIGNAL)
    actions = [action for rank in range(WORKERS) for action in made.worker_exited(rank, -2)]
    assert actions == [EndJob(130, Cause.SIGNAL, "the launcher has received signal 2")]
    assert made.signalled(signal.SIGINT) == ()


def test_a_second_signal_is_passed_on_as_well():
    made = policy()
    made.signalled(signal.SIGTERM)
    assert made.signalled(signal.SIGQUIT)[0].signum == signal.SIGQUIT


def test_a_rank_can_ask_that_the_job_ends():
    made = policy()
    assert made.requested(93, "no use")[0].reason == "no use"
    assert made.requested(93, "again") == ()
    actions = [action for rank in range(WORKERS) for action in made.worker_exited(rank, 0)]
    assert actions == [EndJob(93, Cause.REQUEST, "no use")]


class Node(RuleBasedStateMachine):
    """Any order of ends, signals and requests: each action leaves the node in a state that it has announced."""

    def __init__(self):
        super().__init__()
        self.policy, self.running, self.ended, self.started = policy(max_restarts=2), set(range(WORKERS)), None, 1

    def take(self, actions):
        for action in actions:
            assert self.ended is None
            if isinstance(action, StartWorkers):
                assert not self.running
                self.running, self.started = set(range(WORKERS)), self.started + 1
            elif isinstance(action, EndJob):
                assert not self.running
                self.ended = action

    @precondition(lambda self: self.running)
    @rule(code=st.sampled_from((0, 1, -9, -15)), data=st.data())
    def exit(self, code, data):
        rank = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(rank)
        self.take(self.policy.worker_exited(rank, code))

    @rule(signum=st.sampled_from((2, 15)))
    def signal(self, signum):
        self.take(self.policy.signalled(signum))

    @rule()
    def request(self):
        self.take(self.policy.requested(93, "asked"))

    @invariant()
    def holds(self):
        self.policy.check()
        assert self.started <= 3
        assert self.running or self.ended is not None


TestNode = Node.TestCase
