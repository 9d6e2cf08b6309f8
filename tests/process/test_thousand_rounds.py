"""Many rounds, of the product's machines over a real store and of a real rank: neither the store nor a rank grows."""

from __future__ import annotations

import gc
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import torch.distributed as dist

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.coordination.housekeeping import Housekeeping
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus
from nvrx_core.inprocess.protocol.round import Enter, Round, RoundTimeouts
from nvrx_core.inprocess.store import TCPStore
from nvrx_core.progress.page import Page
from nvrx_core.rank_assignment import AssignmentState, RankAssignmentCtx, ShiftRanks
from nvrx_core.rank_assignment.composition import assign
from nvrx_core.store.keys import StoreKeys
from tests.harness.store_actions import carry_out

from .conftest import Launch

RANKS, WARM, ROUNDS = 3, 600, 1000
SHARE_EVERY = 200
"""Rounds; an iteration store is a connection, and where the name server is slow, each takes a tenth of a second."""
WARM_RESTARTS, RESTARTS = 40, 100
KEYS, TIMEOUTS = StoreKeys("job", 0, 0), RoundTimeouts(60.0, 60.0)


class Rank:
    """What one rank has: a connection, its round, its state."""

    def __init__(self, number: int) -> None:
        self.links = Connections(TCPStore, {}, KEYS, timedelta(seconds=1))
        self.links.use(KEYS)
        self.control_store, self.state = self.links.control_store, AssignmentState(number, RANKS)
        self.housekeeping = Housekeeping(self.control_store.deletion, Page(RANKS), 1, lambda work: work())
        self.round = Round(-1, number, frozenset(range(RANKS)), TIMEOUTS)

    def fail(self) -> None:
        """Its function raises."""
        fault = FaultRecord(
            initial_rank=self.round.member, rank=self.state.rank, interruption="EXCEPTION", message="x" * 99
        )
        carry_out(self.control_store, self.round, self.round.fault(fault))

    def arrive(self) -> None:
        """Out of the function, into the barrier."""
        if self.round.iteration >= 0:
            self.control_store.rounds.await_event(self.round.iteration)
            self.round.event_written()
        arrival = Arrival(
            initial_rank=self.round.member, rank=self.state.rank, status=ArrivalStatus.ALIVE, world_size=RANKS
        )
        carry_out(self.control_store, self.round, self.round.arrive(arrival, now=time.monotonic()))

    def enter(self) -> None:
        """Out of the barrier, into the next round."""
        decision = self.control_store.rounds.await_decision(self.round.iteration)
        (enter,) = self.round.decided(decision)
        assert isinstance(enter, Enter)
        assign(ShiftRanks(), RankAssignmentCtx(self.state, cast(Any, None), set(decision.terminated)))
        if self.state.rank == 0:
            self.control_store.rounds.set_rendezvous(decision.iteration + 1, "127.0.0.1:1234")
        self.housekeeping.decided(self.state.rank, decision)
        self.state.iteration = decision.iteration + 1
        self.housekeeping.entered(self.state)
        self.control_store.membership.move_lease(self.round.member, "", "1")
        self.round = Round(decision.iteration + 1, self.round.member, enter.members, TIMEOUTS)

    def use_stores(self) -> None:
        """Its rank assignment and its function leave keys of their own."""
        self.links.assignment_store(self.round.iteration).send_key({"host": self.state.rank}, self.state.rank)
        if self.round.iteration % SHARE_EVERY == 0:
            shared = self.links.iteration_store(self.round.iteration, None)
            shared.set(f"{self.state.rank}", "x" * 99)
            shared.add("all", 1)


def rss() -> int:
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def play(ranks: list[Rank], number: int) -> None:
    if number > 0:
        ranks[number % RANKS].fail()
    for rank in ranks:
        rank.arrive()
    for rank in ranks:
        rank.enter()
        rank.use_stores()


def test_a_thousand_rounds_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("NVRX_STORE_ENDPOINT", f"127.0.0.1:{server.port}")
    ranks = [Rank(number) for number in range(RANKS)]
    found = []
    for number in range(WARM + ROUNDS):
        play(ranks, number)
        if number in (WARM - 1, WARM + ROUNDS - 1):
            gc.collect()
            found.append((server.num_keys(), sys.getallocatedblocks(), rss()))
    (keys, blocks, resident), (keys_now, blocks_now, resident_now) = found
    assert keys_now == keys
    assert blocks_now - blocks < ROUNDS / 2, "objects of Python"
    assert resident_now - resident < 1 << 20, "server and clients"


@pytest.mark.parametrize("model", [False, True], ids=["without_a_model", "with_a_model_that_outlives_them"])
def test_a_hundred_restarts_of_a_real_rank_cost_less_than_a_kibibyte_each(launch: Launch, model: bool) -> None:
    faults = {(0, iteration, 0): "exception" for iteration in range(WARM_RESTARTS + RESTARTS)}
    job = launch(faults, world=1, steps=1, model=model).finish()
    assert job.codes == {0: 0}
    usage = job.lines("usage")
    assert len(usage) == WARM_RESTARTS + RESTARTS + 1
    grown = usage[-1]["pages"] - usage[WARM_RESTARTS]["pages"]
    assert grown * 4096 < RESTARTS * 1024, f"{grown} pages in {RESTARTS} restarts"
