"""Ranks of one job that contradict each other at entry: all of them end, and say what differs."""

from __future__ import annotations

import pytest

from tests.harness.process.job import TRAIN
from tests.harness.process.oracle import assert_no_process_left

from .conftest import Launch


@pytest.mark.parametrize("first", [0, 1], ids=["the larger world first", "the smaller world first"])
@pytest.mark.parametrize("hosted", [False, True], ids=["own store", "hosted by rank 0"])
def test_ranks_that_were_told_other_world_sizes_end_alike(prepare: Launch, first: int, hosted: bool) -> None:
    job = prepare(world=2, store=not hosted)
    if not hosted:
        job.start_store()
    for rank in (first, 1 - first):
        environment = job.environment(rank, WORLD_SIZE="3" if rank == 0 else "2")
        job.pids[rank] = job.template.fork(TRAIN, [], environment, job.directory / f"rank-{rank}")
    job.finish(20)
    assert job.codes == {0: 1, 1: 1}
    for rank in (0, 1):
        (told,) = [line for line in job.errors(rank).splitlines() if "has WORLD_SIZE" in line]
        assert "WORLD_SIZE=3" in told
        assert "WORLD_SIZE=2" in told
        assert "rank 0 (" in told
        assert "rank 1 (" in told
    assert_no_process_left(job)
