"""Some of the simulated ranks of P10: one process, a connection for each, and the product's round played for each.

`python crowd.py HOST PORT RANKS FIRST LAST SOURCE`. A line on standard input is a stage, answered by a line of JSON:
its begin and end, the CPU time it took and, where a rank of this process has closed the barrier, how long that took.
The stages `event` and `barrier` are traffic alone; in `see` and `enter` the ranks' machines work, one after the other,
which in a job they do side by side.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist
from wire import Wire

from nvrx_core.fault.blame import RankProgress
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus
from nvrx_core.inprocess.protocol.round import Enter, Round, RoundTimeouts
from nvrx_core.rank_assignment.base import AssignmentState, RankAssignmentCtx
from nvrx_core.rank_assignment.composition import assign
from nvrx_core.rank_assignment.moves import ShiftRanks
from nvrx_core.store.keys import StoreKeys
from tests.harness.store_actions import carry_out

__all__ = ["KEYS", "TIMEOUTS"]

KEYS = StoreKeys("bench", 0, 0)
TIMEOUTS = RoundTimeouts(barrier=600.0, completion=600.0)
AT_ONCE = 256
"""Ranks whose answers are taken in a row, the last one first: the process sleeps once for all of them."""


class Rank:
    """One simulated rank."""

    def __init__(self, number: int, members: frozenset[int], wire: Wire) -> None:
        self.wire = wire
        self.control_store = ControlStore(GuardedStore(cast(dist.Store, wire)), KEYS)
        self.state = AssignmentState(
            rank=number, world_size=len(members), initial_rank=number, initial_world_size=len(members)
        )
        self.round = Round(-1, number, members, TIMEOUTS)

    def see_event(self) -> None:
        """What the rank does with the event, up to its arrival."""
        self.control_store.rounds.await_event(self.round.iteration)
        self.round.event_written()
        self.arrive()

    def arrive(self) -> None:
        """Writes and counts the arrival."""
        state = self.state
        arrival = Arrival(
            initial_rank=state.initial_rank, rank=state.rank, status=ArrivalStatus.ALIVE, world_size=state.world_size,
            step=1234, progress=RankProgress(3, 0, 56789, 1235),
        )  # fmt: skip
        carry_out(self.control_store, self.round, self.round.arrive(arrival, now=time.monotonic()))

    def enter(self) -> None:
        """What the rank does with the decision, up to its new place."""
        decision = self.control_store.rounds.await_decision(self.round.iteration)
        (enter,) = self.round.decided(decision)
        assert isinstance(enter, Enter)
        assign(ShiftRanks(), RankAssignmentCtx(self.state, cast(Any, None), set(decision.terminated)))
        self.round = Round(decision.iteration + 1, self.round.member, enter.members, TIMEOUTS)


class Crowd:
    """The ranks of this process."""

    def __init__(self, host: str, port: int, ranks: int, mine: range, source: str) -> None:
        members = frozenset(range(ranks))
        patience = timedelta(seconds=60)
        client = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=patience)
        self.decider = ControlStore(GuardedStore(client), KEYS)
        self.ranks = [Rank(number, members, Wire(host, port, source)) for number in mine]
        self.closing = 0.0

    def arrive(self, iteration: int) -> None:
        """Before the first barrier."""
        for rank in self.ranks:
            rank.arrive()

    def event(self, iteration: int) -> None:
        """All take the push of the event; none has completed, so none reads it."""
        for rank in self._in_turn():
            rank.wire.take_push()

    def see(self, iteration: int) -> None:
        """All act on the event."""
        for rank in self.ranks:
            rank.see_event()

    def barrier(self, iteration: int) -> None:
        """All arrive; the last one decides; all take the push of the decision, and read it."""
        for rank in self.ranks:
            rank.wire.ask(KEYS.round(iteration).decision)
            rank.wire.flush()
        for rank in self._in_turn():
            more = rank.round.arrival_counted(rank.wire.take_count())
            if more:
                begin = time.monotonic()
                carry_out(self.decider, rank.round, more)
                self.closing = time.monotonic() - begin
        self._read(KEYS.round(iteration).decision)

    def enter(self, iteration: int) -> None:
        """All act on the decision."""
        for rank in self.ranks:
            rank.enter()

    def wait(self, iteration: int) -> None:
        """All wait for the event of the round they are in."""
        for rank in self.ranks:
            rank.wire.ask(KEYS.round(iteration).event)

    def beat(self, number: int) -> None:
        """What the monitor processes of all ranks ask of the store in a second: each moves its lease on."""
        for rank in self.ranks:
            rank.wire.move_lease(KEYS.lease(rank.state.initial_rank), number)
        for rank in self._in_turn():
            rank.wire.take_value()

    def lose(self, member: int) -> None:
        """One is no more."""
        for rank in [rank for rank in self.ranks if rank.state.initial_rank == member]:
            self.ranks.remove(rank)
            rank.wire.close()

    def places(self, iteration: int) -> None:
        """Check that the ranks have the places that the decisions give."""
        for before, after in zip(self.ranks, self.ranks[1:], strict=False):
            assert after.state.rank == before.state.rank + 1
            assert after.round.iteration == before.round.iteration

    def _read(self, key: str) -> None:
        for rank in self._in_turn():
            rank.wire.take_push()
            rank.wire.read(key)
        for rank in self._in_turn():
            rank.wire.take_value()

    def _in_turn(self) -> Iterator[Rank]:
        for first in range(0, len(self.ranks), AT_ONCE):
            yield from reversed(self.ranks[first : first + AT_ONCE])


def play(crowd: Crowd, stage: Callable[[int], None], number: int) -> dict[str, float]:
    """Runs a stage and measures it."""
    crowd.closing = 0.0
    begin, cpu = time.monotonic(), time.process_time()
    stage(number)
    return {
        "begin": begin, "end": time.monotonic(), "cpu": time.process_time() - cpu, "closing": crowd.closing,
        "ranks": len(crowd.ranks),
    }  # fmt: skip


def main() -> None:
    """Plays the stages that standard input names."""
    host, source = sys.argv[1], sys.argv[6]
    port, ranks, first, last = map(int, sys.argv[2:6])
    crowd = Crowd(host, port, ranks, range(first, last), source)
    gc.collect()
    gc.freeze()  # thousands of ranks in one heap: no rank of a job collects the garbage of others
    gc.disable()
    print(json.dumps({"connected": len(crowd.ranks)}), flush=True)
    for line in sys.stdin:
        stage, number = line.split()
        print(json.dumps(play(crowd, getattr(crowd, stage), int(number))), flush=True)


if __name__ == "__main__":
    main()
