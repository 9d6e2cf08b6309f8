"""What nodes agree on that somebody else's rendezvous has brought together."""

from __future__ import annotations

import pytest
from nvrx_launcher.exit_codes import FAILED, REFUSED, USAGE
from nvrx_launcher.rendezvous.handlers.agreement import Agreement, JoiningNode, agree, conclusion
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.restart_budget import BudgetState


def entrant(node, cycle=-1, command="", **budget):
    description = NodeDescription(f"host{node}", f"10.0.0.{node}", 29500 + node, 2, command=command)
    return JoiningNode(description, f"10.0.0.{node}:7", cycle, BudgetState(**budget))


def test_ranks_are_those_of_the_rendezvous():
    run = agree([entrant(0), entrant(1)]).decision
    assert (run.kind, run.cycle, run.members) == (DecisionKind.RUN, 0, (Member(0, 0, 2), Member(1, 2, 2)))
    assert (run.master_addr, run.master_port, run.store) == ("10.0.0.0", 29500, "10.0.0.0:7")
    assert (agree([entrant(0)], master_addr="node", master_port=5).decision.master_addr, 5) == ("node", 5)
    assert agree([entrant(0)], master_addr="node", master_port=5).decision.master_port == 5


def test_a_node_is_number_0_for_itself():
    agreed = agree([entrant(each) for each in range(3)])
    assert [member.node for member in agreed.seen_by(1).members] == [1, 0, 3]


def test_a_node_that_is_new_in_the_job_goes_by_what_the_others_know():
    agreed = agree([entrant(0), entrant(1, cycle=4, restarts=2)])
    assert (agreed.decision.cycle, agreed.budget.restarts) == (5, 2)


def test_a_node_of_another_command_is_named_and_ends_the_job_where_that_is_asked_for():
    entrants = [entrant(0, command="a"), entrant(1, command="b")]
    line = "host1 runs another command than host0: 'b' instead of 'a'"
    end = agree(entrants, same_command=True).decision
    assert (end.kind, end.code, end.reason) == (DecisionKind.END, USAGE, line)
    run = agree(entrants).decision
    assert (run.kind, run.reason) == (DecisionKind.RUN, f"2 nodes; {line}")


def test_it_survives_the_wire():
    mine = entrant(0, cycle=3, restarts=1, restarted=(2.0,), begins_in=1.5)
    assert JoiningNode.from_text(mine.to_text()) == mine
    agreed = agree([mine])
    assert Agreement.from_text(agreed.to_text()) == agreed


@pytest.mark.parametrize("kind", [JoiningNode, Agreement])
def test_a_malformed_value_is_refused(kind):
    with pytest.raises(ValueError):  # noqa: PT011
        kind.from_text("{}")


def conclude(kind, restarts=0, *, now=0.0, **state):
    before = Agreement(Decision(DecisionKind.RUN, 3, ""), BudgetState(restarts, **state))
    return conclusion(kind, "host: x", before, rules=Rules(1, 2, 2), now=now)


@pytest.mark.parametrize("kind", [MessageKind.FAILED, MessageKind.NO_PROGRESS, MessageKind.UNHEALTHY])
def test_failures_use_up_restarts(kind):
    stop = conclude(kind, 1)
    assert (stop.decision.kind, stop.budget.restarts) == (DecisionKind.STOP, 2)
    end = conclude(kind, 2).decision
    assert (end.kind, end.code, end.reason) == (DecisionKind.END, FAILED, "host: x, after 2 restarts")


def test_cycles_that_come_to_nothing_are_followed_by_a_pause():
    again = conclude(MessageKind.NO_PROGRESS, 1, no_progress_cycles=1)
    assert (again.decision.reason, again.budget.begins_in) == ("host: x; the next cycle is 1 s away", 1.0)


def test_nodes_that_come_or_leave_use_up_none():
    for kind in (MessageKind.READY, MessageKind.LEFT):
        stop = conclude(kind, 2)
        assert (stop.decision.kind, stop.decision.cycle, stop.budget.restarts) == (DecisionKind.STOP, 3, 2)


def test_a_job_ends_when_it_is_done_or_a_rank_asks_for_it():
    assert conclude(MessageKind.DONE).decision.code == 0
    assert conclude(MessageKind.STOP).decision.code == REFUSED


def test_a_lost_control_store_uses_up_no_restart():
    stop = conclude(MessageKind.STORE_LOST, 2)
    assert (stop.decision.kind, stop.budget.restarts, stop.budget.lost_stores) == (DecisionKind.STOP, 2, 1)
    assert conclude(MessageKind.STORE_LOST, 2, lost_stores=3).decision.kind is DecisionKind.END


def test_workers_of_all_nodes_that_have_failed():
    assert conclude(MessageKind.ALL_FAILED).decision.kind is DecisionKind.STOP
    end = conclude(MessageKind.MISUSED).decision
    assert (end.kind, end.code) == (DecisionKind.END, FAILED)
    assert "not retried" in end.reason
