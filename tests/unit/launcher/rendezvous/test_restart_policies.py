"""What uses up restarts, when a cycle is stopped under each policy, and what a node does that is taken for lost."""

from __future__ import annotations

import math
import signal

import pytest
from nvrx_launcher.node_actions import AwaitRound, EndLaunch, JoinAgain, SendMessage, StopWorkers
from nvrx_launcher.node_policy import NodePolicy
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.coordinator_state import CoordinatorState
from nvrx_launcher.rendezvous.lease import Lease
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import MIN_HEALTHY, Rules
from nvrx_launcher.rendezvous.restart_budget import FORGIVEN_STORES, PacingRules

RUN = Decision(
    DecisionKind.RUN, 0, "2 nodes", members=(Member(3, 0, 2), Member(0, 2, 2)), master_addr="a", master_port=1
)


def ready(node, cycle=-1, command=""):
    return Message(node, MessageKind.READY, cycle, "", NodeDescription(f"host{node}", "a", 1, 2, command=command))


def running(nodes, least, most, max_restarts=0, **rules):
    made = Coordinator(Rules(least, most, max_restarts, **rules))
    made.start(now=0.0)
    decided = [each for node in range(nodes) for each in made.received(ready(node), now=0.0)]
    assert [each.kind for each in decided] == [DecisionKind.RUN]
    return made


def told(made, kind, *nodes, reason="rank 0 has failed"):
    """What is decided when nodes say this of the present cycle."""
    cycle, decided = made.cycle, []
    for node in nodes:
        message = ready(node, cycle) if kind is MessageKind.READY else Message(node, kind, cycle, reason)
        decided += made.received(message, now=1.0)
        made.check()
    return decided


def kinds(decisions):
    return [each.kind for each in decisions]


def test_a_lost_node_uses_up_no_restart():
    made = running(3, 2, 3, pacing=PacingRules(backoff=None))
    for cycle, (target, other, spare) in enumerate([(0, 1, 2), (1, 2, 3)]):
        assert kinds(made.lost(target, "vanished", now=1.0)) == [DecisionKind.LOST, DecisionKind.STOP]
        made.received(ready(spare), now=1.0)
        (run,) = told(made, MessageKind.READY, other)
        assert (run.kind, run.cycle, made.restarts) == (DecisionKind.RUN, cycle + 1, 0)


def lose_a_node_in_each_cycle(made, seconds, cycles):
    """Lose a node so many seconds after each begin; return the pauses, and why the job has ended."""
    now, node, other, pauses = 0.0, 0, 1, list[float]()
    for spare in range(2, 2 + cycles):
        now += seconds
        decided = list(made.lost(node, "vanished", now=now))
        for message in (ready(spare), ready(other, made.cycle)):
            decided += made.received(message, now=now)
        if kinds(decided)[-1] is DecisionKind.END:
            assert decided[1].reason == f"host{node}: vanished", "no next cycle"
            return pauses, decided[-1].reason
        pauses.append(0.0)
        if kinds(decided)[-1] is not DecisionKind.RUN:
            pauses[-1] = made.deadline - now
            assert decided[1].reason == f"host{node}: vanished; the next cycle is {pauses[-1]:g} s away"
            now = made.deadline
            made = Coordinator.from_state(
                made.rules, CoordinatorState.from_json(made.state(now=now).to_json()), now=now
            )
            assert kinds(made.tick(now=now)) == [DecisionKind.RUN]
        node, other = other, spare
    return pauses, ""


def test_a_job_that_loses_a_node_in_each_cycle_is_slowed_down_and_ends():
    pauses, reason = lose_a_node_in_each_cycle(running(2, 2, 2), 5.0, 99)
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, *[60.0] * 8]
    assert reason == "16 cycles in a row have lost a node within 60 s"


def test_nodes_that_are_lost_now_and_then_cost_no_pause():
    assert lose_a_node_in_each_cycle(running(2, 2, 2), 61.0, 40) == ([0.0] * 40, "")


def test_workers_that_fail_because_a_node_is_lost_use_up_no_restart():
    """Their failure is noticed at once, the loss when the lease has ended."""
    made = running(3, 2, 3)
    assert kinds(told(made, MessageKind.FAILED, 1)) == [DecisionKind.STOP]
    assert told(made, MessageKind.READY, 1) == []
    lost, run = made.lost(0, "vanished", now=6.0)
    assert (lost.kind, run.kind, run.cycle, made.restarts) == (DecisionKind.LOST, DecisionKind.RUN, 1, 0)


def test_a_spare_that_is_lost_excuses_no_failure():
    made = running(3, 2, 3)
    told(made, MessageKind.FAILED, 1)
    made.lost(2, "vanished", now=1.0)
    (end,) = told(made, MessageKind.READY, 0, 1)
    assert (end.kind, end.reason) == (DecisionKind.END, "host1: rank 0 has failed, with --max-restarts 0")


def test_a_failure_is_settled_when_all_have_stopped():
    made = running(2, 2, 2, max_restarts=1)
    (stop,) = told(made, MessageKind.FAILED, 0)
    assert stop.reason == "host0: rank 0 has failed"
    assert kinds(told(made, MessageKind.READY, 0, 1)) == [DecisionKind.RUN]
    assert made.restarts == 1


def test_a_message_sent_before_a_node_knew_the_cycle_does_not_stop_it():
    made = running(2, 2, 2)
    assert made.received(ready(1, cycle=-1), now=1.0) == ()
    told(made, MessageKind.FAILED, 0)
    assert made.received(ready(1, cycle=-1), now=1.0) == (), "it is yet to start its workers, and to stop them"


def test_a_node_that_was_considered_lost_joins_again():
    made = running(2, 1, 1)
    lost, stop, run = made.lost(0, "vanished", now=1.0)
    assert (lost.node, stop.kind, [each.node for each in run.members]) == (0, DecisionKind.STOP, [1])
    assert made.received(ready(0, cycle=0), now=2.0) == ()
    assert made.nodes == {0, 1}


def test_another_command_is_refused_and_changes_nothing():
    """Where that is asked for."""
    made = running(2, 2, 2, command="train.py --lr 1", same_command=True)
    (refusal,) = made.received(ready(5, command="train.py --lr 2"), now=1.0)
    assert (refusal.kind, refusal.node, refusal.code) == (DecisionKind.REFUSE, 5, 2)
    assert "another command than host5: 'train.py --lr 1', and not 'train.py --lr 2'" in refusal.reason
    assert made.received(ready(6, command="train.py --lr 1"), now=1.0) == ()
    assert made.nodes == {0, 1, 6}


def test_another_command_before_the_first_cycle_ends_the_job_for_all_nodes_at_once():
    made = Coordinator(Rules(3, 3, 0, command="a", same_command=True))
    made.start(now=0.0)
    assert made.received(ready(0, command="a"), now=0.0) == ()
    (end,) = made.received(ready(1, command="b"), now=0.0)
    assert (end.kind, end.code) == (DecisionKind.END, 2)
    assert made.nodes == {0, 1}, "the launcher that hosts the store must not end before the refused one has read it"


def test_another_command_takes_part_by_default():
    made = Coordinator(Rules(2, 2, 0, command="a"))
    made.start(now=0.0)
    made.received(ready(0, command="a"), now=0.0)
    assert [each.kind for each in made.received(ready(1, command="b"), now=0.0)] == [DecisionKind.RUN]


def min_healthy(nodes=3, least=2, most=4, **rules):
    made = Coordinator(Rules(least, most, restart_policy=MIN_HEALTHY, **{"max_restarts": 1, **rules}))
    made.start(now=0.0)
    for node in range(nodes):
        made.received(ready(node), now=0.0)
    made.tick(now=1.0)
    made.check()
    return made


def test_all_nodes_up_to_the_maximum_take_part_under_min_healthy():
    made = Coordinator(Rules(2, 4, 0, restart_policy=MIN_HEALTHY))
    made.start(now=0.0)
    for node in range(3):
        assert made.received(ready(node), now=0.0) == ()
    (run,) = made.tick(now=1.0)
    assert [each.node for each in run.members] == [0, 1, 2]


def test_failures_are_tolerated_while_enough_nodes_are_healthy():
    made = min_healthy(nodes=4)
    assert told(made, MessageKind.UNHEALTHY, 0) == []
    assert told(made, MessageKind.UNHEALTHY, 0) == [], "another worker of the same node"
    assert told(made, MessageKind.UNHEALTHY, 1) == []
    (stop,) = told(made, MessageKind.UNHEALTHY, 2)
    assert (stop.kind, stop.reason) == (DecisionKind.STOP, "host2: rank 0 has failed")
    (run,) = told(made, MessageKind.READY, 0, 1, 2, 3)
    assert ([each.node for each in run.members], made.restarts) == ([0, 1, 2, 3], 1)


@pytest.mark.parametrize("is_handed_on", [False, True])
def test_a_failure_uses_up_no_restart_where_a_node_was_lost_in_the_same_cycle(is_handed_on):
    """The others go on without the node, and those that talk to it fail later; also under another coordinator."""
    made = min_healthy(least=2, max_restarts=0)
    assert kinds(made.lost(0, "vanished", now=1.0)) == [DecisionKind.LOST]
    if is_handed_on:
        state = CoordinatorState.from_json(made.state(now=1.0).to_json())
        made = Coordinator.from_state(made.rules, state, now=1.0)
    (stop,) = told(made, MessageKind.UNHEALTHY, 1)
    why = "no restart is used up, for this cycle has lost a node or its control store before"
    assert stop.reason == f"host1: rank 0 has failed; {why}"
    (run,) = told(made, MessageKind.READY, 1, 2)
    assert (run.kind, run.cycle, made.restarts) == (DecisionKind.RUN, 1, 0)
    told(made, MessageKind.UNHEALTHY, 1)
    (end,) = told(made, MessageKind.READY, 1, 2)
    assert (end.kind, end.reason) == (DecisionKind.END, "host1: rank 0 has failed, with --max-restarts 0")


def test_the_loss_of_one_node_too_many_stops_the_cycle_and_counts_not():
    made = min_healthy()
    told(made, MessageKind.UNHEALTHY, 0)
    assert kinds(made.lost(1, "vanished", now=1.0)) == [DecisionKind.LOST, DecisionKind.STOP]
    assert kinds(told(made, MessageKind.READY, 0, 2)) == [DecisionKind.RUN]
    assert made.restarts == 0


def test_a_job_whose_call_does_not_go_on_is_restarted_though_nodes_are_healthy():
    assert kinds(told(min_healthy(), MessageKind.FAILED, 0)) == [DecisionKind.STOP]


def test_the_job_is_done_when_the_workers_that_are_left_are():
    made = min_healthy()
    told(made, MessageKind.UNHEALTHY, 0)
    assert told(made, MessageKind.DONE, 0, 1) == []
    assert not made.is_over
    (end,) = told(made, MessageKind.DONE, 2)
    assert made.is_over
    assert (end.kind, end.code) == (DecisionKind.END, 0)


def test_the_job_is_done_when_the_only_node_that_is_not_is_lost():
    made = min_healthy()
    told(made, MessageKind.DONE, 0, 1)
    assert kinds(made.lost(2, "vanished", now=1.0)) == [DecisionKind.LOST, DecisionKind.END]


def node(**more):
    made = NodePolicy(2, workers_stop_timeout=15.0, term_timeout=15.0, **more)
    made.joined(0)
    made.decided(RUN)
    return made


def test_a_node_that_is_cut_off_kills_its_workers_and_joins_again():
    made = node()
    (stop,) = made.lease_expired("no answer")
    assert stop == StopWorkers(9, math.inf, stop.cause, "no answer")
    assert made.is_stopping
    assert made.lease_expired("no answer") == ()
    made.worker_exited(0, -9)
    left = (SendMessage(MessageKind.LEFT, 0, "it was cut off"), JoinAgain("it was cut off"))
    assert made.worker_exited(1, -9) == left, "not before: others take its place then"
    assert made.joined(7) == (SendMessage(MessageKind.READY, 0),)
    assert made.decided(RUN) == (), "what was decided for its old number is not for it"
    assert made.lease_expired("no answer") == left
    made.decided(Decision(DecisionKind.END, 0, "over"))
    assert made.lease_expired("no answer") == ()


def test_a_node_without_workers_that_is_considered_lost_reports_ready():
    made = NodePolicy(2, workers_stop_timeout=15.0, term_timeout=15.0)
    made.joined(0)
    (ready,) = made.decided(Decision(DecisionKind.LOST, 0, "no lease", node=0))
    assert ready == SendMessage(MessageKind.READY, -1, "taken for lost: no lease")


@pytest.mark.parametrize(("node_meant", "stops"), [(0, True), (3, False)])
def test_a_node_that_is_considered_lost_kills_its_workers(node_meant, stops):
    actions = node().decided(Decision(DecisionKind.LOST, 0, "no lease", node=node_meant))
    assert [isinstance(each, StopWorkers) and each.signum for each in actions] == [signal.SIGKILL] * stops


def test_a_launcher_that_is_refused_ends_with_the_code_of_wrong_usage():
    made = NodePolicy(2, workers_stop_timeout=15.0, term_timeout=15.0)
    made.joined(0)
    assert made.decided(Decision(DecisionKind.REFUSE, 0, "another command", 2, node=1)) == ()
    *_, end = made.decided(Decision(DecisionKind.REFUSE, 0, "another command", 2, node=0))
    assert (isinstance(end, EndLaunch), end.code, end.reason) == (True, 2, "another command")


def test_the_other_workers_of_a_node_go_on_under_min_healthy():
    made = node(min_healthy=True)
    assert made.worker_exited(0, -9, "rank 2 was killed") == (
        SendMessage(MessageKind.UNHEALTHY, 0, "rank 2 was killed"),
    )
    made.check()
    assert made.worker_exited(1, 0) == (SendMessage(MessageKind.DONE, 0),)


def test_a_rank_that_a_wrapped_call_goes_on_without_makes_its_node_unhealthy():
    made = node(min_healthy=True)
    assert made.worker_exited(0, -9, "rank 2 was killed", in_process=True) == (AwaitRound(2),)
    assert made.round_answered(0, 2, is_entered=True) == (SendMessage(MessageKind.UNHEALTHY, 0, "rank 2 was killed"),)


def test_a_call_that_does_not_go_on_fails_the_cycle_under_min_healthy():
    made = node(min_healthy=True)
    made.worker_exited(0, -9, "rank 2 was killed", in_process=True)
    failed, stop = made.round_answered(0, 2, is_entered=False)
    assert failed == SendMessage(MessageKind.FAILED, 0, "rank 2 was killed")
    assert isinstance(stop, StopWorkers)


def test_a_node_takes_its_lease_for_lost_a_beat_before_the_others_do():
    lease = Lease(1.0, 4.0)
    assert lease.deadline == math.inf
    lease.moved(begun=10.0)
    assert (lease.deadline, lease.is_lost(now=13.9), lease.is_lost(now=14.0)) == (14.0, False, True)
    lease.release(now=14.0)
    assert not lease.is_lost(now=99.0)


@pytest.mark.parametrize("is_handed_on", [False, True])
def test_a_lost_control_store_uses_up_no_restart_but_for_the_fourth(is_handed_on):
    """Its host may be a spare; the failures of the ranks that it takes with it do not count, before and after it."""
    made = running(2, 1, 2)
    for cycle in range(FORGIVEN_STORES):
        (stop,) = told(made, MessageKind.STORE_LOST, 1, reason="the store is lost")
        assert (stop.kind, stop.reason) == (DecisionKind.STOP, "host1: the store is lost; no restart is used up")
        assert told(made, MessageKind.FAILED, 0) == []
        (run,) = told(made, MessageKind.READY, 0)
        assert (run.kind, run.cycle, made.restarts) == (DecisionKind.RUN, cycle + 1, 0)
        if is_handed_on:
            state = CoordinatorState.from_json(made.state(now=1.0).to_json())
            made = Coordinator.from_state(made.rules, state, now=1.0)
    told(made, MessageKind.STORE_LOST, 1, reason="the store is lost")
    (end,) = told(made, MessageKind.READY, 0)
    assert end.kind is DecisionKind.END
    assert end.reason == "host1: the store is lost; it is loss 4 of a store, with --max-restarts 0"


def test_a_failure_that_is_noticed_before_the_loss_of_the_store_does_not_count():
    made = running(2, 2, 2)
    assert kinds(told(made, MessageKind.FAILED, 1, reason="rank 2 has failed with exit code 75")) == [DecisionKind.STOP]
    assert told(made, MessageKind.READY, 1) == []
    assert told(made, MessageKind.STORE_LOST, 0, reason="the store is lost") == []
    (run,) = told(made, MessageKind.READY, 0)
    assert (run.kind, run.cycle, made.restarts) == (DecisionKind.RUN, 1, 0)


def test_the_loss_of_the_store_of_an_earlier_cycle_or_by_a_node_that_has_left_changes_nothing():
    made = running(2, 1, 2, max_restarts=1)
    told(made, MessageKind.FAILED, 0)
    told(made, MessageKind.READY, 0)
    assert made.received(Message(0, MessageKind.STORE_LOST, 0, "late"), now=1.0) == ()
    assert told(made, MessageKind.LEFT, 1) == []
    assert told(made, MessageKind.STORE_LOST, 1) == []
