"""What comes late, or twice, changes nothing: a schedule for each rule of the rendezvous that says so."""

from __future__ import annotations

import pytest
from nvrx_launcher.departure import signalled
from nvrx_launcher.node_actions import EndLaunch, SendMessage
from nvrx_launcher.node_policy import NodePolicy
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import ANY_FAILED, MIN_HEALTHY, Rules


def ready(node, cycle=-1):
    return Message(node, MessageKind.READY, cycle, "", NodeDescription(f"host{node}", "a", 1, 1))


def told(made, kind, node, cycle=0):
    return made.received(Message(node, kind, cycle, "x"), now=0.0)


def running(nodes, least, policy=MIN_HEALTHY):
    made = Coordinator(Rules(least, nodes, 1, restart_policy=policy))
    made.start(now=0.0)
    for node in range(nodes):
        made.received(ready(node), now=0.0)
    return made


@pytest.mark.parametrize("kind", [MessageKind.FAILED, MessageKind.UNHEALTHY, MessageKind.DONE])
def test_what_a_node_that_is_taken_for_lost_has_sent_changes_nothing(kind):
    """The cycle goes on without it; then its message of that cycle arrives."""
    made = running(3, least=2)
    made.lost(2, "no lease", now=0.0)
    assert told(made, kind, 2) == ()
    made.check()
    assert told(made, MessageKind.DONE, 0) == ()
    assert told(made, MessageKind.DONE, 1)[0].kind is DecisionKind.END


def test_a_job_ends_once():
    """A rank has asked for another end just before all were done."""
    made = running(1, least=1)
    assert told(made, MessageKind.DONE, 0)[0].code == 0
    assert told(made, MessageKind.STOP, 0) == ()
    assert made.received(ready(1), now=0.0) == ()
    assert made.nodes == {0}, "nobody waits for a node that comes after the end"
    assert made.abandon(75, "x") == ()


def launcher():
    made = NodePolicy(1, workers_stop_timeout=1.0, term_timeout=1.0)
    made.joined(0)
    made.decided(run(0))
    return made


def run(cycle):
    return Decision(DecisionKind.RUN, cycle, "", members=(Member(0, 0, 1),))


def test_a_node_that_has_stopped_by_itself_is_ready_once():
    """Its worker has failed; the stop of the cycle comes back to it when it waits for the next one."""
    made = launcher()
    assert made.worker_exited(0, 1, "x") == (SendMessage(MessageKind.FAILED, 0, "x"), SendMessage(MessageKind.READY, 0))
    assert made.decided(Decision(DecisionKind.STOP, 0, "x")) == ()


def test_a_stop_of_another_cycle_stops_nothing():
    """A node that joins again reads what was decided before, too."""
    made = launcher()
    made.worker_exited(0, 1, "x")
    made.decided(run(1))
    assert made.decided(Decision(DecisionKind.STOP, 0, "x")) == ()
    made.check()


def test_a_launcher_ends_once():
    made = launcher()
    made.worker_exited(0, 0)
    assert isinstance(made.decided(Decision(DecisionKind.END, 0, "done"))[-1], EndLaunch)
    for late in (
        Decision(DecisionKind.STOP, 0, "x"),
        Decision(DecisionKind.END, 0, "x", 93),
        Decision(DecisionKind.LOST, 0, "x", node=0),
    ):
        assert made.decided(late) == ()


def test_the_first_end_counts():
    """A signal ends the launcher while its workers stop for the end of the job."""
    made = launcher()
    made.leave(signalled(15))
    made.decided(Decision(DecisionKind.END, 0, "asked", 93))
    assert made.worker_exited(0, -15)[-1].code == 128 + 15


def test_the_last_call_begins_anew_when_a_node_has_left():
    made = Coordinator(Rules(2, 3, 0, last_call_timeout=1.0, join_timeout=600.0))
    made.start(now=0.0)
    for node in (0, 1):
        made.received(ready(node), now=0.0)
    assert made.deadline == 1.0
    told(made, MessageKind.LEFT, 1, cycle=-1)
    assert made.deadline == 600.0
    assert made.received(ready(2), now=5.0) == ()
    assert made.deadline == 6.0


def test_a_failure_counts_once():
    """The cycle after it is stopped by a node that begins anew, which uses up no restart."""
    made = running(2, least=2, policy=ANY_FAILED)
    told(made, MessageKind.FAILED, 0)
    for node in (0, 1):
        made.received(ready(node, cycle=0), now=0.0)
    (stop,) = made.received(ready(0, cycle=1), now=0.0)
    (again,) = made.received(ready(1, cycle=1), now=0.0)
    assert (stop.kind, again.kind, made.restarts) == (DecisionKind.STOP, DecisionKind.RUN, 1)


def test_the_workers_meet_at_the_port_that_a_node_has_named_last():
    made = running(1, least=1, policy=ANY_FAILED)
    told(made, MessageKind.FAILED, 0)
    (again,) = made.received(Message(0, MessageKind.READY, 0, "", NodeDescription("h", "a", 2, 1)), now=0.0)
    assert again.master_port == 2
