"""Launchers as a platform has them: processes are killed, stopped, frozen and cut off, disks fill, consoles stall.

The job of a seed goes on, or ends, in the time that docs/how-to/launcher.md states; each launcher says why it ends;
nothing is left. `python -m tests.harness.process.chaos --seed 7` runs the job of one seed.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from pathlib import Path

import pytest

from tests.harness.process.chaos.run import play
from tests.harness.process.chaos.schedule import PROCESSES, draw

SHORT = [pytest.param(seed, id=f"seed {seed}") for seed in (1, 2, 3)]
"""Jobs that take some 10 s each, of which none is like another."""
NIGHT = [pytest.param(600.0, id=f"600 s, {number} of 10") for number in range(1, 11)]


def test_a_seed_draws_the_same_each_time_and_all_kinds_of_processes_are_struck() -> None:
    schedules = [draw(seed) for seed in range(300)]
    assert [draw(seed) for seed in range(300)] == schedules
    assert {blow.kind for schedule in schedules for blow in schedule.blows} == {*PROCESSES, "node"}


@pytest.mark.parametrize("seed", SHORT)
def test_a_job_under_chaos_goes_on_or_ends_as_documented(seed: int, tmp_path: Path) -> None:
    print(play(draw(seed, span=8.0, longest=4.0), tmp_path))


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", NIGHT)
def test_jobs_under_chaos_go_on_or_end_as_documented(seconds: float, tmp_path: Path) -> None:
    first = int(os.environ.get("NVRX_TEST_SEED", random.randrange(1 << 32)))
    end = time.monotonic() + seconds
    for seed in itertools.count(first):
        schedule = draw(seed)
        print(schedule)
        print(play(schedule, tmp_path / f"{seed - first}"))
        if time.monotonic() >= end:
            return
