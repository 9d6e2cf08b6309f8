"""Rank assignments of real jobs: groups that fall together, trees with reserves, users' own classes."""

from __future__ import annotations

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_nothing_lost, restart

from .conftest import Launch

KILLED, RAISED = -9, 1
Faults = dict[tuple[int, int, int], str]


def places(job: Job, iteration: int) -> dict[int, int]:
    """The initial rank of each rank of an iteration."""
    return dict(sorted((line["rank"], line["initial_rank"]) for line in job.lines("enter", iteration=iteration)))


def lost(rank: int, *discarded: int):
    return restart("TERMINATED", by=[rank], lost=[rank], discarded=discarded)


def test_a_death_takes_its_whole_group_along(launch: Launch) -> None:
    job = launch({(2, 0, 2): "kill", (0, 1, 2): "kill"}, world=6, assignment="hosts", collective=True).finish()
    assert_nothing_lost(job, lost(2, 3), lost(0, 1), codes={2: KILLED, 3: RAISED, 0: KILLED, 1: RAISED})
    assert places(job, 1) == {0: 0, 1: 1, 2: 4, 3: 5}
    assert places(job, 2) == {0: 4, 1: 5}
    assert "RankDiscarded: rank 3 is among the terminated ranks [2, 3]" in job.errors(3)


def test_a_group_that_is_short_at_the_start_does_not_begin(launch: Launch) -> None:
    job = launch(world=5, assignment="hosts", collective=True).finish()
    assert_nothing_lost(job, codes={4: RAISED}, absent=[4])
    assert places(job, 0) == {0: 0, 1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize("targets", [(1, 0), (0, 5)], ids=["rank 0 second", "rank 0 first, then who replaced it"])
def test_a_spare_takes_the_dead_ranks_place(launch: Launch, targets: tuple[int, int]) -> None:
    faults: Faults = {(target, iteration, 2): "kill" for iteration, target in enumerate(targets)}
    job = launch(faults, world=6, assignment="spares", collective=True).finish()
    assert_nothing_lost(job, *map(lost, targets), codes=dict.fromkeys(targets, KILLED))
    assert places(job, 1) == {rank: 5 if rank == targets[0] else rank for rank in range(4)}
    assert places(job, 2) == {0: 4, 1: 5 if targets[0] == 1 else 1, 2: 2, 3: 3}


def test_a_tree_counts_a_rank_that_dies_while_the_others_take_their_places(launch: Launch) -> None:
    job = launch({(2, 0, 2): "kill"}, world=6, assignment="fragile_spares", collective=True, endless=True).finish()
    assert_nothing_lost(job, lost(2), lost(1), codes={1: KILLED, 2: KILLED})
    assert places(job, 2) == {0: 0, 1: 4, 2: 5, 3: 3}


def test_a_node_that_loses_a_rank_is_replaced_as_a_whole(launch: Launch) -> None:
    job = launch({(2, 0, 2): "kill"}, world=8, assignment="nodes", collective=True).finish()
    assert_nothing_lost(job, lost(2, 3), codes={2: KILLED, 3: RAISED}, spares=2)
    assert places(job, 1) == {0: 0, 1: 1, 2: 7, 3: 6}
    assert "its domain 'host-1' has fewer than 2 ranks" in job.errors(3)


def test_a_tree_begins_afresh_with_each_call(launch: Launch) -> None:
    job = launch({(0, 0, 2): "kill"}, world=5, assignment="spares", calls=2).finish()
    assert_nothing_lost(job, lost(0), codes={0: KILLED})
    second = {line["rank"]: line["initial_rank"] for line in job.lines("enter", call=1)}
    assert second == {0: 1, 1: 2, 2: 3, 3: 4}, "the living ranks, in their order"


def test_users_own_classes_exchange_what_they_need_through_the_store(launch: Launch) -> None:
    job = launch({(4, 0, 2): "kill"}, world=6, assignment="own", collective=True).finish()
    assert_nothing_lost(job, lost(4), codes={4: KILLED}, spares=1)
    assert places(job, 0) == {0: 2, 1: 4, 2: 1, 3: 3}, "by speed: 4, 3, 2, 1, 0, 0"
    assert places(job, 1) == {0: 2, 1: 1, 2: 3, 3: 0}
    told = {(line["of"], line["number"]) for line in job.lines("told")}
    assert told == {(world, number) for world in (5, 6) for number in range(1, world + 1)}, (
        "each round a store of its own"
    )


def test_a_built_in_stage_behind_a_users_own_exchanges_keys_through_the_store(launch: Launch) -> None:
    job = launch({(2, 0, 2): "kill"}, world=6, assignment="behind", collective=True).finish()
    assert_nothing_lost(job, lost(2, 3), codes={2: KILLED, 3: RAISED})
    assert set(places(job, 1).values()) == {0, 1, 4, 5}


def test_a_rank_whose_key_function_fails_exits_and_the_others_restart(launch: Launch) -> None:
    job = launch({(2, 0, 2): "exception"}, world=3, assignment="broken_key", collective=True).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[2], lost=[1]), codes={1: RAISED})
    assert "LookupError: no such host" in job.errors(1)


def test_a_rank_whose_key_function_fails_at_entry_exits_and_the_others_begin(launch: Launch) -> None:
    job = launch(world=3, assignment="broken_at_first", collective=True).finish()
    assert_nothing_lost(job, codes={1: RAISED}, absent=[1])
    assert set(places(job, 0).values()) == {0, 2}
