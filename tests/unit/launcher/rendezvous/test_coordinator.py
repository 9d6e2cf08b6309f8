"""What is decided for all nodes of a job, and what each node does about it; together, under any order of events."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace

import pytest
from nvrx_launcher.departure import coordination_lost, signalled
from nvrx_launcher.node_actions import AwaitOthers, AwaitRound, EndLaunch, SendMessage, StartWorkers, StopWorkers
from nvrx_launcher.node_policy import NodePolicy
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.coordinator_state import CoordinatorState
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules

from nvrx_core.parsing import parse_object

LAST_CALL, JOIN = 1.0, 600.0


def described(node, *, order=-1, workers=2):
    return NodeDescription(f"host{node}", f"10.0.0.{node}", 29500 + node, workers, order)


def ready(node, cycle=-1, **more):
    return Message(node, MessageKind.READY, cycle, description=described(node, **more))


def coordinator(least=2, most=2, max_restarts=1, **more):
    made = Coordinator(Rules(least, most, max_restarts, last_call_timeout=LAST_CALL, join_timeout=JOIN, **more))
    made.start(now=0.0)
    return made


def running(nodes=2, **options):
    made = coordinator(**options)
    for node in range(nodes):
        made.received(ready(node), now=0.0)
    return made


def stopped(made, *nodes):
    """What is decided when these nodes have stopped."""
    return [each for node in nodes for each in made.received(ready(node, cycle=made.cycle), now=2.0)]


def test_a_cycle_begins_when_all_nodes_are_ready():
    made = coordinator()
    assert made.received(ready(1), now=0.0) == ()
    assert made.deadline == JOIN
    (decision,) = made.received(ready(0), now=1.0)
    assert decision == Decision(
        DecisionKind.RUN, 0, "2 nodes, 0 spare", members=(Member(0, 0, 2), Member(1, 2, 2)),
        master_addr="10.0.0.0", master_port=29500, active_hosts="host[0-1]",
    )  # fmt: skip
    assert decision.world_size == 4
    assert made.deadline == math.inf


def test_one_node_is_told_in_the_singular():
    (decision,) = coordinator(1, 1).received(ready(0), now=0.0)
    assert decision.reason == "1 node, 0 spare"


def test_the_infrastructure_orders_the_ranks():
    made = coordinator()
    made.received(ready(0, order=1), now=0.0)
    (decision,) = made.received(ready(1, order=0), now=0.0)
    assert [member.node for member in decision.members] == [1, 0]


def test_more_nodes_are_waited_for_until_the_last_call_is_over():
    made = coordinator(least=1, most=3)
    made.received(ready(0), now=5.0)
    assert made.deadline == 6.0
    assert made.tick(now=5.5) == ()
    (decision,) = made.tick(now=6.0)
    assert [member.node for member in decision.members] == [0]


def test_spares_wait_and_take_the_place_of_a_lost_node():
    made = coordinator(least=2, most=3)
    for node in range(3):
        decisions = made.received(ready(node), now=0.0)
    assert decisions[0].reason == "2 nodes, 1 spare"
    lost, stop = made.lost(0, "node 0 has vanished", now=1.0)
    assert (lost.kind, lost.node) == (DecisionKind.LOST, 0)
    assert (stop.kind, stop.cycle) == (DecisionKind.STOP, 0)
    (run,) = made.received(ready(1, cycle=0), now=2.0)
    assert (run.cycle, [member.node for member in run.members]) == (1, [1, 2])


def test_a_spare_with_a_lower_number_does_not_take_the_place_of_a_node_that_is_there():
    """As an agent of torch elastic has that joins before others and asks to take part after them."""
    made = coordinator(2, 3)
    for number in (1, 2):
        made.received(ready(number), now=0.0)
    made.tick(now=LAST_CALL)
    made.received(ready(0), now=1.5)
    made.received(ready(2, cycle=0), now=2.0)  # it begins anew
    made.check()
    state = CoordinatorState.from_json(json.loads(json.dumps(made.state(now=2.0).to_json())))
    for each in (made, Coordinator.from_state(made.rules, state, now=2.0)):
        (decision,) = each.received(ready(1, cycle=0), now=2.0)
        assert [member.node for member in decision.members] == [1, 2]


def test_the_place_of_a_lost_node_is_its_own_again_only_if_no_other_has_joined_before():
    made = coordinator(2, 3)
    for number in range(3):
        made.received(ready(number), now=0.0)
    made.lost(0, "its lease", now=1.0)
    (decision,) = stopped(made, 1)
    assert [member.node for member in decision.members] == [1, 2]
    made.received(ready(0, cycle=0), now=2.0)
    made.lost(1, "its lease", now=3.0)
    made.received(ready(2, cycle=1), now=3.0)
    (decision,) = made.tick(now=made.deadline)
    assert [member.node for member in decision.members] == [0, 2]


def test_too_few_nodes_end_the_job_with_their_names():
    made = coordinator()
    made.received(ready(1), now=0.0)
    (end,) = made.tick(now=JOIN)
    assert (end.kind, end.code) == (DecisionKind.END, 1)
    assert end.reason == "1 of 2 nodes have joined in 600 s: ['host1']"


def test_a_failure_stops_all_nodes_once():
    made = running()
    (stop,) = made.received(Message(1, MessageKind.FAILED, 0, "rank 3 has failed"), now=1.0)
    assert stop == Decision(DecisionKind.STOP, 0, "host1: rank 3 has failed")
    assert made.received(Message(0, MessageKind.FAILED, 0, "rank 0 has failed, too"), now=1.0) == ()
    assert made.received(ready(1, cycle=0), now=2.0) == ()
    (run,) = made.received(ready(0, cycle=0), now=3.0)
    assert (run.kind, run.cycle) == (DecisionKind.RUN, 1)


def stopping():
    """Return a coordinator of three nodes, one of them spare, whose cycle is being stopped since second 1."""
    made = coordinator(least=2, most=3)
    for node, within in ((0, 40.0), (1, 60.0), (2, 40.0)):
        description = NodeDescription(f"host{node}", "a", 1, 2, stops_within=within)
        made.received(Message(node, MessageKind.READY, -1, description=description), now=0.0)
    made.received(Message(0, MessageKind.FAILED, 0, "rank 0 has failed"), now=1.0)
    return made


def test_a_node_that_does_not_stop_in_its_time_is_given_up_and_the_spare_takes_its_place():
    made = stopping()
    assert made.deadline == 41.0
    made.received(ready(0, cycle=0), now=3.0)
    assert made.deadline == 61.0
    assert made.tick(now=60.9) == ()
    lost, run = made.tick(now=61.0)
    assert lost == Decision(DecisionKind.LOST, 0, "host1 has not stopped its workers within 60 s", node=1)
    assert (run.kind, run.cycle, [member.node for member in run.members]) == (DecisionKind.RUN, 1, [0, 2])
    assert made.restarts == 0
    assert made.received(ready(1, cycle=0), now=70.0) == ()
    assert made.nodes == {0, 1, 2}


def test_nodes_are_given_up_one_by_one():
    made = stopping()
    (lost,) = made.tick(now=41.0)
    assert (lost.kind, lost.node, made.deadline) == (DecisionKind.LOST, 0, 61.0)
    made.check()


def test_another_coordinator_gives_the_node_up_as_well():
    state = CoordinatorState.from_json(parse_object(json.dumps(stopping().state(now=11.0).to_json())))
    assert state.stopping_for == 10.0
    successor = Coordinator.from_state(coordinator(least=2, most=3).rules, state, now=100.0)
    assert successor.deadline == 130.0
    assert successor.tick(now=130.0)[0].node == 0


def test_after_the_end_a_lost_node_is_no_longer_waited_for_and_nothing_is_decided():
    made = running()
    for node in range(2):
        end = made.received(Message(node, MessageKind.DONE, 0), now=1.0)
    assert [each.kind for each in end] == [DecisionKind.END]
    assert made.lost(1, "no lease", now=6.0) == ()
    assert made.nodes == {0}


def test_the_job_ends_when_all_nodes_are_done():
    made = running()
    assert made.received(Message(0, MessageKind.DONE, 0), now=1.0) == ()
    (end,) = made.received(Message(1, MessageKind.DONE, 0), now=1.0)
    assert end == Decision(DecisionKind.END, 0, "all workers are done")
    assert made.nodes == {0, 1}
    made.received(Message(0, MessageKind.LEFT, 0), now=1.0)
    assert made.nodes == {1}


@pytest.mark.parametrize(("max_restarts", "spent"), [(0, "with --max-restarts 0"), (1, "after 1 restarts")])
def test_the_job_fails_when_its_restarts_are_spent(max_restarts, spent):
    made = running(max_restarts=max_restarts)
    for cycle in range(max_restarts + 1):
        (stop,) = made.received(Message(0, MessageKind.FAILED, cycle, "rank 0 has failed"), now=1.0)
        assert stop.kind is DecisionKind.STOP
        (decision,) = stopped(made, 0, 1)
    assert decision == Decision(DecisionKind.END, max_restarts, f"host0: rank 0 has failed, {spent}", code=1)


def test_messages_of_an_earlier_cycle_change_nothing():
    made = running()
    made.received(Message(0, MessageKind.FAILED, 0, "x"), now=1.0)
    made.received(ready(0, cycle=0), now=1.0)
    made.received(ready(1, cycle=0), now=1.0)
    assert made.received(Message(1, MessageKind.FAILED, 0, "late"), now=1.0) == ()
    assert made.received(Message(1, MessageKind.DONE, 0), now=1.0) == ()


def test_the_host_of_a_failure_is_named_on_all_nodes():
    (failed,) = running().received(Message(1, MessageKind.FAILED, 0, "rank 2 has failed"), now=1.0)
    left, *_ = running().received(Message(1, MessageKind.LEFT, 0, "the launcher has received signal 15"), now=1.0)
    _, lost = running().lost(1, "no sign of life", now=1.0)
    assert [each.reason for each in (failed, left, lost)] == [
        "host1: rank 2 has failed", "host1: the launcher has received signal 15", "host1: no sign of life",
    ]  # fmt: skip


def test_a_node_that_begins_anew_stops_the_cycle():
    made = running()
    assert made.received(ready(1), now=1.0) == (), "it has not heard of the cycle yet"
    (stop,) = made.received(ready(1, cycle=0), now=1.0)
    assert stop.reason == "host1 has begun anew"
    (run,) = stopped(made, 0)
    assert (run.cycle, made.restarts) == (1, 0)


def test_a_rank_can_ask_that_the_job_ends():
    (end,) = running().received(Message(0, MessageKind.STOP, 0, "the loss is not finite"), now=1.0)
    assert (end.code, end.reason) == (93, "the loss is not finite")


def test_the_end_of_its_launcher_ends_the_job():
    made = running()
    assert made.abandon(75, "gone")[0].code == 75
    assert made.abandon(75, "gone") == ()


def test_a_spare_that_leaves_changes_nothing():
    made = coordinator(least=2, most=3)
    for node in range(3):
        made.received(ready(node), now=0.0)
    assert made.received(Message(2, MessageKind.LEFT, -1), now=1.0) == ()
    assert made.lost(9, "unknown", now=1.0) == ()


def node(number=0, workers=2, **more):
    made = NodePolicy(workers, workers_stop_timeout=15.0, term_timeout=1800.0, **more)
    assert made.joined(number) == (SendMessage(MessageKind.READY, -1),)
    return made


RUN = Decision(
    DecisionKind.RUN, 0, "2 nodes", members=(Member(3, 0, 2), Member(0, 2, 2)), master_addr="a", master_port=1
)


def test_a_node_starts_its_workers_at_its_place():
    (start,) = node().decided(RUN)
    assert start == StartWorkers(RUN, 1, Member(0, 2, 2))
    assert start.reason == RUN.reason


def test_a_node_that_runs_does_not_start_again():
    made = node()
    made.decided(RUN)
    assert made.decided(RUN) == ()


def test_a_spare_starts_nothing_and_stops_nothing():
    made = node(number=7)
    assert made.decided(RUN) == ()
    assert made.decided(Decision(DecisionKind.STOP, 0, "x")) == ()


def test_a_failed_worker_is_reported_and_the_others_are_stopped():
    made = node()
    made.decided(RUN)
    told, stop = made.worker_exited(1, -9, "rank 3 was ended by SIGKILL")
    assert told == SendMessage(MessageKind.FAILED, 0, "rank 3 was ended by SIGKILL")
    assert (stop.signum, stop.grace) == (signal.SIGTERM, 15.0)
    assert made.decided(Decision(DecisionKind.STOP, 0, "x")) == ()
    assert made.worker_exited(0, -15) == (SendMessage(MessageKind.READY, 0),)


def test_a_node_that_is_done_can_be_asked_to_begin_anew():
    made = node()
    made.decided(RUN)
    made.worker_exited(0, 0)
    assert made.worker_exited(1, 0) == (SendMessage(MessageKind.DONE, 0),)
    assert made.decided(Decision(DecisionKind.STOP, 0, "x")) == (SendMessage(MessageKind.READY, 0),)


def test_a_signal_is_passed_on_and_the_node_leaves():
    made = node()
    made.decided(RUN)
    left, stop = made.leave(signalled(signal.SIGINT))
    assert left.kind is MessageKind.LEFT
    assert (stop.signum, stop.grace) == (signal.SIGINT, 1800.0)
    made.worker_exited(0, -2)
    assert isinstance(made.worker_exited(1, -2)[-1], EndLaunch)
    assert made.leave(signalled(signal.SIGINT)) == made.decided(RUN) == made.leave(coordination_lost(75, "x")) == ()


def test_the_end_of_the_job_stops_the_workers_first():
    made = node()
    made.decided(RUN)
    (stop,) = made.decided(Decision(DecisionKind.END, 0, "asked", code=93))
    assert isinstance(stop, StopWorkers)
    made.worker_exited(0, -15)
    assert made.worker_exited(1, -15)[-1].code == 93


def test_a_node_without_a_coordinator_ends():
    made = node()
    made.decided(RUN)
    made.leave(coordination_lost(75, "the store is lost"))
    made.worker_exited(0, -15)
    assert made.worker_exited(1, -15)[-1].code == 75


@pytest.mark.parametrize(
    "thing", [RUN, Decision(DecisionKind.STOP, 3, "x"), Decision(DecisionKind.END, 3, "x", code=93)]
)
def test_a_decision_survives_the_wire(thing):
    assert Decision.from_json(thing.to_json()) == thing


def test_the_state_of_a_large_job_fits_in_a_request_to_etcd():
    """It takes 1.5 MB; what nodes say only to be compared is not part of the state."""
    made = coordinator(1500, 1500)
    given = tuple((f"--an-option-of-the-launcher-{number}", "600") for number in range(10))
    for node in range(1500):
        description = replace(described(node), command=f"--rank {node} " + "x" * 1000, given=given)
        made.received(Message(node, MessageKind.READY, -1, description=description), now=0.0)
    text = json.dumps(made.state(now=0.0).to_json())
    assert len(text) < 400_000
    assert dict(CoordinatorState.from_json(parse_object(text)).nodes)[1499] == described(1499)


def test_a_message_survives_the_wire():
    for thing in (ready(3), Message(1, MessageKind.LEFT, 2, "x", records=("Xid", "another"))):
        assert Message.from_text(json.dumps(thing.to_json())) == thing


def test_the_records_in_a_message_are_the_last_ones_and_bounded_at_both_ends():
    data = Message(1, MessageKind.READY, 2, records=("y",) * 100 + ("x" * 1000,) * 16).to_json()
    assert data["records"] == ["x" * 300] * 16
    found = Message.from_text(json.dumps(data | {"records": ["x" * 1000] * 100})).records
    assert found == ("x" * 300,) * 16


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"node": -1, "kind": "ready", "cycle": 0, "reason": ""}',
        '{"node": 0}',
        '{"node": 0, "kind": "ready", "cycle": 0, "reason": "", "records": [1]}',
        '{"node": 0, "kind": "ready", "cycle": 0, "reason": "", "records": {"a": 1}}',
    ],
)
def test_a_malformed_value_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011
        Message.from_text(text)
    with pytest.raises(ValueError):  # noqa: PT011
        Decision.from_json(parse_object(text))


def doubtful(*others):
    """A node whose worker 0 has ended in a job with in-process restart, and others before with code 0."""
    made = node()
    made.decided(RUN)
    for local_rank in others:
        made.worker_exited(local_rank, 0)
    assert made.worker_exited(0, -9, "rank 2 was ended by SIGKILL", in_process=True) == (AwaitRound(2),)
    made.check()
    return made


def test_a_worker_is_not_missed_when_the_job_goes_on_without_it():
    made = doubtful()
    assert made.round_answered(0, 2, is_entered=True) == ()
    assert made.worker_exited(1, 0) == (SendMessage(MessageKind.DONE, 0),)


def test_the_last_worker_may_be_the_one_that_is_not_missed():
    assert doubtful(1).round_answered(0, 2, is_entered=True) == (SendMessage(MessageKind.DONE, 0),)


def test_a_node_is_not_done_before_it_is_known_whether_a_worker_is_missed():
    made = doubtful()
    assert made.worker_exited(1, 0) == ()
    assert made.round_answered(0, 2, is_entered=False) == (
        SendMessage(MessageKind.FAILED, 0, "rank 2 was ended by SIGKILL"),
        SendMessage(MessageKind.READY, 0),
    )


def test_a_worker_that_is_missed_fails_the_cycle():
    told, stop = doubtful().round_answered(0, 2, is_entered=False)
    assert told == SendMessage(MessageKind.FAILED, 0, "rank 2 was ended by SIGKILL")
    assert isinstance(stop, StopWorkers)


def test_an_answer_about_an_earlier_cycle_changes_nothing():
    made = doubtful()
    for cycle, rank in ((-1, 2), (0, 3)):
        assert made.round_answered(cycle, rank, is_entered=True) == ()
        assert made.round_answered(cycle, rank, is_entered=False) == ()


def test_a_stop_settles_what_is_in_doubt():
    made = doubtful()
    made.decided(Decision(DecisionKind.STOP, 0, "x"))
    assert made.round_answered(0, 2, is_entered=False) == ()
    assert made.worker_exited(1, -15) == (SendMessage(MessageKind.READY, 0),)


def left_call(made, *local_ranks):
    """What a node tells when workers have left a wrapped call with code 17."""
    acted = [made.worker_exited(each, 17, f"rank {2 + each} has failed", in_process=True) for each in local_ranks]
    made.check()
    return [each for actions in acted for each in actions if isinstance(each, SendMessage)]


def test_a_node_tells_that_all_its_workers_have_failed_in_a_wrapped_call():
    made = node()
    made.decided(RUN)
    assert left_call(made, 0) == []
    made.round_answered(0, 2, is_entered=True)
    assert left_call(made, 1) == [SendMessage(MessageKind.ALL_FAILED, 0, "rank 3 has failed")]


def test_a_node_one_of_whose_workers_is_done_does_not_tell_so():
    made = node()
    made.decided(RUN)
    made.worker_exited(0, 0)
    assert left_call(made, 1) == []


def test_a_cycle_all_of_whose_workers_have_failed_is_stopped_at_once():
    made = running(max_restarts=0)
    assert made.received(Message(0, MessageKind.ALL_FAILED, 0, "rank 1 has failed"), now=1.0) == ()
    made.check()
    (stop,) = made.received(Message(1, MessageKind.ALL_FAILED, 0, "rank 3 has failed"), now=1.0)
    assert (stop.kind, stop.reason) == (DecisionKind.STOP, "host1: rank 3 has failed")
    assert stopped(made, 0, 1)[-1].reason == "host1: rank 3 has failed, with --max-restarts 0"


def test_the_loss_of_the_last_node_with_workers_stops_the_cycle():
    made = running(least=1, restart_policy="min-healthy")
    made.received(Message(0, MessageKind.ALL_FAILED, 0, "rank 1 has failed"), now=1.0)
    assert [each.kind for each in made.lost(1, "vanished", now=2.0)] == [DecisionKind.LOST, DecisionKind.STOP]


def misused(made, *local_ranks):
    """What a node does when workers have refused their command line."""
    acted = [
        made.worker_exited(each, 2, f"rank {2 + each} has failed", no_progress=True, is_misuse=True)
        for each in local_ranks
    ]
    made.check()
    return [action for actions in acted for action in actions]


def test_a_node_waits_whether_all_its_workers_refuse_their_command_line():
    made = node(retries_misuse=False)
    made.decided(RUN)
    assert misused(made, 0) == [AwaitOthers(0, 1.0)]
    assert misused(made, 1) == [SendMessage(MessageKind.MISUSED, 0, "rank 3 has failed"), AwaitOthers(0, 5.0)]
    assert made.waited(1) == ()
    told, ready_again = made.waited(0)
    assert told == SendMessage(MessageKind.NO_PROGRESS, 0, "rank 2 has failed")
    assert ready_again.kind is MessageKind.READY
    assert made.waited(0) == ()


def test_a_worker_that_alone_refuses_its_command_line_has_failed():
    made = node(retries_misuse=False)
    made.decided(RUN)
    misused(made, 1)
    told, stop = made.waited(0)
    assert (told, stop.signum) == (SendMessage(MessageKind.NO_PROGRESS, 0, "rank 3 has failed"), signal.SIGTERM)
    assert made.waited(0) == ()


@pytest.mark.parametrize("how", ["retried", "after a step", "another code", "a later cycle"])
def test_other_failures_are_no_misuse(how):
    made = node(retries_misuse=how == "retried")
    cycle = int(how == "a later cycle")
    made.decided(Decision(DecisionKind.RUN, cycle, "", members=RUN.members))
    code = 1 if how == "another code" else 2
    is_misuse = how != "another code"
    told, _ = made.worker_exited(0, code, "", no_progress=how != "after a step", is_misuse=is_misuse)
    assert told.kind in (MessageKind.FAILED, MessageKind.NO_PROGRESS)


def test_a_command_line_that_the_workers_of_all_nodes_refuse_ends_the_job():
    made = running(max_restarts=3)
    assert made.received(Message(0, MessageKind.MISUSED, 0, "rank 0 has failed"), now=1.0) == ()
    made = Coordinator.from_state(made.rules, CoordinatorState.from_json(made.state(now=1.0).to_json()), now=1.0)
    (end,) = made.received(Message(1, MessageKind.MISUSED, 0, "rank 2 has failed"), now=1.0)
    assert (end.kind, end.code) == (DecisionKind.END, 1)
    assert end.reason.startswith("host1: rank 2 has failed; all workers have failed before their first step")


def test_nodes_of_which_only_some_refuse_their_command_line_are_restarted():
    made = running(max_restarts=3)
    made.received(Message(0, MessageKind.MISUSED, 0, "rank 0 has failed"), now=1.0)
    (stop,) = made.received(Message(1, MessageKind.ALL_FAILED, 0, "rank 2 has failed"), now=1.0)
    assert stop.kind is DecisionKind.STOP


@pytest.mark.parametrize("kind", [MessageKind.HANG_SUSPECTED, MessageKind.HANG_EVIDENCE, MessageKind.HANG_JUDGED])
def test_a_hang_by_itself_changes_nothing(kind: MessageKind) -> None:
    made = running()
    before = made.state(now=1.0)
    assert made.received(Message(0, kind, 0, "text"), now=1.0) == ()
    assert made.state(now=1.0) == before
