"""What a `Tree` costs each rank of a large job: time a call, bytes in the decision, memory over many calls.

`python -m tests.benchmarks.tree [--ranks N] [--calls N]` prints a JSON object. A call is what a rank does between the
decision and its new place: read the keys out of the decision (at the start only), then `Tree`.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

from nvrx_core.inprocess.protocol.decision import RoundDecision
from nvrx_core.rank_assignment import AssignmentState, Layer, LayerFlag, RankAssignmentCtx, Tree
from nvrx_core.rank_assignment.composition import assign, declare, snapshot
from nvrx_core.rank_assignment.snapshot import columns_of

__all__ = ["growth", "measure"]

HOST, RACK = 8, 64


def tree() -> Tree:
    """A cluster of racks of 8 hosts of 8 ranks; a host that loses a rank is lost, a rack replaces what it can."""
    layers = [
        Layer(flag=LayerFlag.RESERVE),
        Layer(max_ranks=RACK - HOST, key_or_fn=lambda state: state.rank // RACK, flag=LayerFlag.RESERVE),
        Layer(min_ranks=HOST, key_or_fn=lambda state: f"host-{state.rank // HOST:05}", flag=LayerFlag.RESERVE),
    ]
    return Tree(layers, world_size_filter=lambda size: size // HOST * HOST)


def start(assignment: Tree, ranks: int) -> str:
    """The decision of the first barrier, as it is in the store."""
    keys = columns_of(declare(assignment, AssignmentState(rank, ranks), -1) for rank in range(ranks))
    return RoundDecision(iteration=-1, lost=(), terminated=(), cause=None, culprits=(), step=-1, keys=keys).encode()


def call(assignment: Tree, state: AssignmentState, text: str) -> None:
    """What the wrapper does with a decision."""
    decision = RoundDecision.decode(text)
    terminated = set(decision.terminated)
    facts = snapshot(
        assignment, state.freeze(), iteration=decision.iteration, terminated=terminated, columns=decision.keys
    )
    assign(assignment, RankAssignmentCtx(state, None, terminated, facts))  # type: ignore[arg-type]


def rounds(assignment: Tree, state: AssignmentState, calls: int) -> Iterator[float]:
    """Seconds of each later call. Each loses a rank of the lower half, while three quarters of all ranks live."""
    rng, ranks = random.Random(0), state.world_size
    for iteration in range(calls):
        lost = (rng.randrange(ranks // 2),) if state.world_size > ranks * 3 // 4 else ()
        text = RoundDecision(iteration=iteration, lost=lost, terminated=lost, cause=None, culprits=(), step=-1).encode()
        began = time.perf_counter()
        call(assignment, state, text)
        yield time.perf_counter() - began


def measure(ranks: int = 16_384, calls: int = 100) -> dict[str, Any]:
    """Seconds of the first call and of the later ones, bytes of the first decision, bytes that later calls add."""
    assignment, state = tree(), AssignmentState(ranks - 1, ranks)
    text = start(assignment, ranks)
    began = time.perf_counter()
    call(assignment, state, text)
    first = time.perf_counter() - began
    later = sorted(rounds(assignment, state, calls))
    return {
        "ranks": ranks, "first_call_s": first, "later_calls_median_s": later[len(later) // 2],
        "later_calls_worst_s": later[-1], "calls": calls, "first_decision_bytes": len(text),
        "living_at_the_end": state.world_size, "active_at_the_end": state.active_world_size,
        "bytes_added_by_the_calls": growth(ranks, calls),
    }  # fmt: skip


def growth(ranks: int, calls: int) -> int:
    """Bytes that are held after so many calls and were not held after a tenth of them."""
    assignment, state = tree(), AssignmentState(ranks - 1, ranks)
    tracemalloc.start()
    try:
        call(assignment, state, start(assignment, ranks))
        before = 0
        for number, _ in enumerate(rounds(assignment, state, calls)):
            before = _held() if number == calls // 10 else before
        return _held() - before
    finally:
        tracemalloc.stop()


def _held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--calls", type=int, default=100)
    options = parser.parse_args()
    print(json.dumps(measure(options.ranks, options.calls), indent=2))
