"""What a restart asks of the store, by the number of ranks: the product's machines over a store that counts."""

from collections import Counter

import pytest
import torch.distributed as dist

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import BATCH, GuardedStore
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus
from nvrx_core.inprocess.protocol.round import Round, RoundTimeouts
from nvrx_core.store.keys import StoreKeys
from tests.harness.store_actions import carry_out

TIMEOUTS = RoundTimeouts(60.0, 60.0)
EACH = 5


class Counting:
    """Counts the exchanges with the store below it, as torch's client makes them."""

    def __init__(self):
        self.store, self.exchanges = dist.HashStore(), Counter()

    def __getattr__(self, name):
        method = getattr(self.store, name)

        def ask(*arguments):
            self.exchanges[name] += 2 if name in ("get", "multi_get") else 1
            return method(*arguments)

        return ask


def restart(ranks):
    """One rank fails, all arrive, all read the decision, the round is deleted; what was asked."""
    store, members = Counting(), frozenset(range(ranks))
    control_store = ControlStore(GuardedStore(store), StoreKeys("job", 0, 0))
    rounds = [Round(0, member, members, TIMEOUTS) for member in members]
    store.exchanges.clear()
    fault = FaultRecord(initial_rank=3, rank=3, interruption="EXCEPTION")
    carry_out(control_store, rounds[3], rounds[3].fault(fault))
    for member, machine in enumerate(rounds):
        control_store.rounds.await_event(0)
        machine.event_written()
        arrival = Arrival(
            initial_rank=member, rank=member, status=ArrivalStatus.ALIVE, world_size=ranks, endpoint="host:1"
        )
        carry_out(control_store, machine, machine.arrive(arrival, now=1.0))
    assert {control_store.rounds.await_decision(0).rendezvous for _ in members} == {("host", 1)}
    control_store.deletion.delete_round(0, ranks)
    assert store.store.num_keys() == 0
    return store.exchanges


@pytest.mark.parametrize("blocks", [1, 3, 8])
def test_a_restart_asks_five_things_for_each_rank_and_little_for_all(blocks):
    ranks = blocks * BATCH
    asked = restart(ranks)
    assert asked["append"] == asked["add"] == ranks
    assert asked["wait"] == 2 * ranks
    assert asked.total() - EACH * ranks <= 12 + 2 * blocks
