"""Launchers as a platform has them: processes are killed, stopped, frozen and cut off, disks fill, consoles stall.

The job of a seed goes on, or ends, in the time that docs/reference/launcher.md states; each launcher says why it ends;
nothing is left. `python -m tests.harness.process.chaos --seed 7` runs the job of one seed.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.process.chaos.run import play
from tests.harness.process.chaos.schedule import PROCESSES, draw
from tests.harness.process.monitored import environment_of

SHORT = (3, 106, 340, 3778)
"""Of jobs of some 20 s: seven kinds of processes are killed, nodes cut off, a console stalls, a disk is full."""
WITHIN = 240.0
"""Seconds that only a job exceeds whose end the oracle does not see."""
NIGHT = [pytest.param(600.0, id=f"600 s, {number} of 10") for number in range(1, 11)]


def test_a_seed_draws_the_same_each_time_and_all_kinds_of_processes_are_struck() -> None:
    schedules = [draw(seed) for seed in range(300)]
    assert [draw(seed) for seed in range(300)] == schedules
    assert {blow.kind for schedule in schedules for blow in schedule.blows} == {*PROCESSES, "node"}


def test_jobs_under_chaos_side_by_side_go_on_or_end_as_documented(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.harness.process.chaos", "--span", "8", "--longest", "10"]
    started = [
        subprocess.Popen(
            [*command, "--seed", str(seed)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment_of(tmp_path),
        )
        for seed in SHORT
    ]  # fmt: skip
    outputs = [each.communicate(timeout=WITHIN)[0] for each in started]
    assert [each.returncode for each in started] == [0] * len(SHORT), "\n".join(outputs)


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", NIGHT)
def test_jobs_under_chaos_go_on_or_end_as_documented(seconds: float) -> None:
    first = int(os.environ.get("NVRX_TEST_SEED", random.randrange(1 << 32)))
    end = time.monotonic() + seconds
    for seed in itertools.count(first):
        schedule = draw(seed)
        print(schedule)
        print(play(schedule))
        if time.monotonic() >= end:
            return
