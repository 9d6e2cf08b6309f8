"""Rank assignments that a test's ranks may have, by name; a host is two ranks."""

from __future__ import annotations

import os
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist

from nvrx_core import inprocess
from nvrx_core.inprocess.rank_assignment import (
    ActivateAllRanks,
    FilterCountGroupedByKey,
    FilterGroupedByKey,
    Layer,
    LayerFlag,
    MaxActiveWorldSize,
    RankAssignment,
    RankAssignmentCtx,
    RankFilter,
    ShiftRanks,
    Tree,
)
from nvrx_core.testing.faults import FaultKind, inject
from tests.harness.process.workers.record import Record

__all__ = ["named"]


def named(name: str, record: Record) -> Any:
    """The assignment of that name."""
    makers = hosts, spares, fragile_spares, nodes, own, behind, broken_key, broken_at_first
    return {maker.__name__: maker for maker in makers}[name](record)


def host(state: Any) -> str:
    return f"host-{state.initial_rank // 2}"


def whole(count: int) -> bool:
    return count == 2


def hosts(record: Record) -> Any:
    """A host that loses a rank is lost."""
    return inprocess.Compose(ActivateAllRanks(), ShiftRanks(), FilterCountGroupedByKey(host, whole))


def spares(record: Record) -> Any:
    """Four ranks run, the others wait."""
    return Tree([Layer(max_ranks=4, flag=LayerFlag.RESERVE)])


def fragile_spares(record: Record) -> Any:
    """The same; rank 1 dies in the assignment after iteration 0, when the others count on it."""

    def size(ranks: int) -> int:
        if me == "1" and next(rounds) == 1:
            inject(FaultKind.KILL, stamp=lambda at: record("fault_injected", at=at, kind="kill"))
        return ranks

    me, rounds = os.environ["RANK"], count()
    return Tree([Layer(max_ranks=4, flag=LayerFlag.RESERVE)], size)


def nodes(record: Record) -> Any:
    """Two hosts run, a host that loses a rank is lost, another takes its places."""
    reserve = LayerFlag.RESERVE
    return Tree([Layer(max_ranks=4, flag=reserve), Layer(min_ranks=2, key_or_fn=host, flag=reserve)])


class Speeds(RankAssignment):
    """A user's own assignment: the ranks tell each other their speeds, and the fastest is rank 0."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        state, store = ctx.state, dist.PrefixStore("speeds", ctx.store)
        ctx.store.set(f"speeds/{state.rank}", str(state.initial_rank * 7 % 5))
        living = [rank for rank in range(state.world_size) if rank not in ctx.terminated_ranks]
        store.wait([str(rank) for rank in living], timedelta(seconds=20))
        order = sorted(living, key=lambda rank: -int(store.get(str(rank))))
        self.record("told", iteration=state.iteration, number=ctx.store.add("told", 1), of=len(living))
        state.rank, state.world_size, ctx.terminated_ranks = order.index(state.rank), len(living), set()
        return ctx


class AtMost(RankFilter):
    """A user's own filter."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        return MaxActiveWorldSize(4)(ctx)


def own(record: Record) -> Any:
    return inprocess.Compose(AtMost(), Speeds(record))


def behind(record: Record) -> Any:
    """A built-in stage that needs keys, behind a user's own."""
    return inprocess.Compose(ShiftRanks(), FilterGroupedByKey(host, whole, timedelta(seconds=20)), Speeds(record))


def broken_key(record: Record) -> Any:
    """The key of rank 1 cannot be told after iteration 0."""
    return inprocess.Compose(ShiftRanks(), FilterCountGroupedByKey(lambda state: breaks(state, 0), bool))


def broken_at_first(record: Record) -> Any:
    """The key of rank 1 cannot be told at all."""
    return inprocess.Compose(ShiftRanks(), FilterCountGroupedByKey(lambda state: breaks(state, -1), bool))


def breaks(state: Any, iteration: int) -> str:
    begun = state.mode is not inprocess.Mode.INITIALIZED
    if state.initial_rank == 1 and (begun or iteration < 0):
        raise LookupError("no such host")
    return "host"
