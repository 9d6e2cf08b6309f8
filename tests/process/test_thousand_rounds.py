"""Many rounds, of the product's machines over a real store and of a real rank: neither the store nor a rank grows."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist

from nvrx_core.clock import SystemClock
from nvrx_core.inprocess.board import Board
from nvrx_core.inprocess.decision import Arrival, Standing
from nvrx_core.inprocess.fault import Fault
from nvrx_core.inprocess.round import Enter, Round, RoundTimeouts
from nvrx_core.rank_assignment import RankAssignmentCtx, ShiftRanks, State
from nvrx_core.rank_assignment.composition import assign
from nvrx_core.store.keys import Keys

from .conftest import Launch

RANKS, WARM, ROUNDS = 3, 600, 1000
WARM_RESTARTS, RESTARTS = 40, 100
KEYS, CLOCK, TIMEOUTS = Keys("job", 0, 0), SystemClock(), RoundTimeouts(60.0, 60.0)


class Rank:
    """What one rank has: a connection, its round, its state."""

    def __init__(self, number: int, store: dist.Store) -> None:
        self.board, self.state = Board(store, KEYS, CLOCK), State(number, RANKS)
        self.round = Round(-1, number, frozenset(range(RANKS)), TIMEOUTS)

    def fail(self) -> None:
        """Its function raises."""
        fault = Fault(initial_rank=self.round.member, rank=self.state.rank, interruption="EXCEPTION", message="x" * 99)
        self.board.play(self.round, self.round.fault(fault, now=CLOCK.now()))

    def arrive(self) -> None:
        """Out of the function, into the barrier."""
        if self.round.iteration >= 0:
            self.board.wait_event(self.round.iteration)
            self.round.happened(now=CLOCK.now())
        arrival = Arrival(
            initial_rank=self.round.member, rank=self.state.rank, standing=Standing.ALIVE, world_size=RANKS
        )
        self.board.play(self.round, self.round.arrive(arrival, now=CLOCK.now()))

    def enter(self) -> None:
        """Out of the barrier, into the next round."""
        decision = self.board.wait_decision(self.round.iteration)
        (enter,) = self.round.decided(decision, now=CLOCK.now())
        assert isinstance(enter, Enter)
        assign(ShiftRanks(), RankAssignmentCtx(self.state, cast(Any, None), set(decision.terminated)))
        if self.state.rank == 0:
            self.board.set_master(decision.iteration + 1, "127.0.0.1:1234")
            self.board.delete_round(decision.iteration - 1, RANKS)
        self.board.move_lease(self.round.member, "", "1")
        self.round = Round(decision.iteration + 1, self.round.member, enter.members, TIMEOUTS)


def rss() -> int:
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def play(ranks: list[Rank], number: int) -> None:
    if number > 0:
        ranks[number % RANKS].fail()
    for rank in ranks:
        rank.arrive()
    for rank in ranks:
        rank.enter()


def test_a_thousand_rounds_leave_nothing_behind() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [Rank(number, server.clone()) for number in range(RANKS)]
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


def test_a_hundred_restarts_of_a_real_rank_cost_less_than_a_kibibyte_each(launch: Launch) -> None:
    faults = {(0, iteration, 0): "exception" for iteration in range(WARM_RESTARTS + RESTARTS)}
    job = launch(faults, world=1, steps=1).finish()
    assert job.codes == {0: 0}
    usage = job.lines("usage")
    assert len(usage) == WARM_RESTARTS + RESTARTS + 1
    grown = usage[-1]["pages"] - usage[WARM_RESTARTS]["pages"]
    assert grown * 4096 < RESTARTS * 1024, f"{grown} pages in {RESTARTS} restarts"
