"""A node's part in a rendezvous, for an agent of torch elastic."""

from __future__ import annotations

from queue import Empty

import pytest
from nvrx_launcher.rendezvous.elastic.participant import Participant
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, MessageKind
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)

RUN = Decision(DecisionKind.RUN, 0, "", members=(Member(7, 0, 1),), master_addr="a", master_port=1)


class Recorded:
    """A coordination that records what it is asked for."""

    def __init__(self) -> None:
        self.told = list[MessageKind]()

    def tell(self, kind, _cycle, _reason):
        self.told.append(kind)

    def join_again(self):
        self.told.append(MessageKind.READY)


@pytest.fixture
def participant():
    made = Participant()
    made.coordination = Recorded()
    made.joined(7)
    return made


def answer(participant):
    try:
        return participant.answers.get_nowait()
    except Empty:
        return None


def test_an_agent_that_asks_is_ready_and_gets_the_decision_that_places_its_node(participant):
    assert participant.coordination.told == []
    participant.take_part()
    assert participant.coordination.told == [MessageKind.READY]
    participant.decided(Decision(DecisionKind.RUN, 0, "", members=(Member(8, 0, 1),), master_addr="a", master_port=1))
    assert answer(participant) is None
    participant.decided(RUN)
    assert (answer(participant), participant.progress()) == (RUN, (0, ()))


def test_one_that_asks_before_its_node_has_joined_is_ready_then():
    made = Participant()
    made.coordination = Recorded()
    made.take_part()
    assert made.coordination.told == []
    made.joined(7)
    assert made.coordination.told == [MessageKind.READY]


def test_workers_are_to_be_stopped_for_a_stop_of_their_cycle_only(participant):
    participant.take_part()
    participant.decided(RUN)
    participant.decided(Decision(DecisionKind.STOP, 3, ""))
    assert not participant.must_restart
    participant.decided(Decision(DecisionKind.STOP, 0, ""))
    assert participant.must_restart


def test_a_node_that_counts_as_lost_stops_its_workers_or_asks_again(participant):
    lost = Decision(DecisionKind.LOST, 0, "", node=7)
    participant.take_part()
    participant.decided(lost)
    assert (participant.coordination.told, participant.must_restart) == ([MessageKind.READY] * 2, False)
    participant.decided(RUN)
    participant.decided(lost)
    assert participant.must_restart


def test_a_node_that_is_cut_off_joins_under_another_number(participant):
    participant.lease_expired("the store has not answered")
    assert participant.coordination.told == [MessageKind.LEFT, MessageKind.READY]
    assert (participant.node, participant.must_restart) == (-1, True)
    participant.lease_expired("the store has not answered yet")
    assert participant.coordination.told == [MessageKind.LEFT, MessageKind.READY], "it is about to join already"


def test_an_agent_hears_of_the_end_of_the_event_loop(participant):
    """One that waits gets it as its answer; one that asks later, before anything else."""
    participant.fail(RuntimeError("the thread nvrx-rendezvous-loop has failed: ValueError: x"))
    assert isinstance(answer(participant), RendezvousConnectionError)
    assert "nvrx-rendezvous-loop" in str(participant.end)


@pytest.mark.parametrize(("code", "error"), [(0, RendezvousClosedError), (1, RendezvousTimeoutError)])
def test_the_end_of_the_job_answers_an_agent_that_waits_and_each_later_one(participant, code, error):
    participant.take_part()
    participant.decided(Decision(DecisionKind.END, 0, "it is over", code=code))
    assert isinstance(answer(participant), error)
    participant.take_part()
    assert isinstance(answer(participant), error)


def test_the_first_reason_of_an_end_stays(participant):
    participant.take_part()
    participant.coordinator_lost(75, "the store is lost")
    participant.leave()
    assert isinstance(answer(participant), RendezvousConnectionError)
    assert participant.coordination.told == [MessageKind.READY, MessageKind.LEFT]
    participant.close()
    assert participant.coordination.told[-1] is MessageKind.STOP
