"""For whom the rank that hosts the store waits."""

import pytest

from nvrx_core.inprocess.coordination import membership as clients
from nvrx_core.inprocess.coordination.membership import await_clients


class Membership:
    """Clients that move their leases for some turns and leave, or do not."""

    def __init__(self, turns):
        self.turns, self.turn = turns, 0

    def have_left(self, members):
        self.turn += 1
        return all(self.turn > self.turns.get(member, 0) for member in members)

    def leases(self, members):
        return {member: str(min(self.turn, self.turns[member])) for member in members if member in self.turns}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(clients, "TURN", 0.01)


def test_clients_that_leave_are_waited_for():
    membership = Membership({1: 20, 2: 5})
    await_clients(membership, range(3), heartbeat_timeout=0.04)
    assert membership.turn == 21


def test_a_wait_that_lasts_is_logged_once(monkeypatch, caplog):
    await_clients(Membership({1: 3}), range(2), heartbeat_timeout=0.04)
    assert not caplog.records
    monkeypatch.setattr(clients, "SAID_AFTER", 0.0)
    await_clients(Membership({1: 3}), range(2), heartbeat_timeout=0.04)
    assert [record.message for record in caplog.records] == [
        "this rank hosts the control store and waits for its clients, the ranks that still run"
    ]


def test_an_unresponsive_client_is_waited_for_no_longer_than_the_heartbeat_timeout():
    membership = Membership({})
    membership.have_left = lambda members: not members
    await_clients(membership, range(3), heartbeat_timeout=0.04)
