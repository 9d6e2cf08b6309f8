"""Who holds the shard that a place needs: what the guide of the state in memory says of rank assignments."""

from __future__ import annotations

from itertools import combinations

import pytest

from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.rank_assignment import (
    ActiveWorldSizeDivisibleBy,
    FillGaps,
    Layer,
    LayerFlag,
    MaxActiveWorldSize,
    ShiftRanks,
    Tree,
)
from nvrx_core.testing import FakeRanks

SHARDS = 2


def after(assignment, world, lost):
    """Return who trains before and after a loss: initial ranks by their places."""
    ranks = FakeRanks(assignment, world_size=world)
    before = trains(ranks)
    ranks.restart(lost=set(lost))
    return before, trains(ranks)


def trains(ranks):
    return {state.active_rank: rank for rank, state in ranks.states.items() if state.active_rank is not None}


def losses(world, count):
    return [lost for number in range(1, count + 1) for lost in combinations(range(world), number)]


@pytest.mark.parametrize("make", [
    lambda: Compose(MaxActiveWorldSize(4), FillGaps()),
    lambda: Tree([Layer(min_ranks=4, max_ranks=4, flag=LayerFlag.RESERVE)]),
], ids=["FillGaps", "Tree"])  # fmt: skip
@pytest.mark.parametrize("lost", losses(6, 2))
def test_with_spares_only_the_places_of_lost_ranks_change_hands(make, lost):
    before, now = after(make(), 6, lost)
    assert len(now) == 4
    assert all(now[place] == rank for place, rank in before.items() if rank not in lost)


@pytest.mark.parametrize("lost", losses(6, 2))
def test_with_spares_no_rank_that_trains_is_benched_though_its_place_may_change(lost):
    before, now = after(Compose(MaxActiveWorldSize(4), ShiftRanks()), 6, lost)
    assert set(before.values()) - set(lost) <= set(now.values())


@pytest.mark.parametrize("lost", losses(6, 2))
def test_replicas_that_are_given_up_as_a_whole_leave_each_shard_to_a_holder_at_its_place(lost):
    """Of three replicas of two shards, without spares: one replica at least is whole."""
    replicas = Tree([Layer(), Layer(key_or_fn=lambda state: state.rank // SHARDS, min_ranks=SHARDS)])
    _, now = after(replicas, 6, lost)
    assert len(now) == 6 - SHARDS * len({rank // SHARDS for rank in lost})
    assert all(rank % SHARDS == place % SHARDS for place, rank in now.items())


@pytest.mark.parametrize(("move", "lost"), [(FillGaps(), 0), (ShiftRanks(), 1)], ids=["FillGaps", "ShiftRanks"])
def test_a_divisor_may_bench_the_only_holder_of_a_shard(move, lost):
    """Of two replicas of two shards, without spares: the guide warns of it."""
    _, now = after(Compose(ActiveWorldSizeDivisibleBy(SHARDS), move), 4, [lost])
    assert len({rank % SHARDS for rank in now.values()}) == 1
