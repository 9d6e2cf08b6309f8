"""Runs the jobs of seeds."""

from __future__ import annotations

import os
import time
from pathlib import Path

from .job import chaos_job
from .oracle import ChaosFailure, check
from .schedule import Schedule

__all__ = ["play"]


def play(schedule: Schedule, folder: Path) -> str:
    """Run a job through its blows; return how it ended.

    Args:
        schedule: the job and the blows.
        folder: for its files.

    Raises:
        ChaosFailure: when it did not go on or end as documented.
    """
    begun = time.monotonic()
    try:
        with chaos_job(schedule.shape, folder, f"chaos-{os.getpid()}-{schedule.seed}") as job:
            if not schedule.is_early:
                job.await_workers()
            for blow in schedule.blows:
                job.turn(max(0.0, blow.at - job.now()))
                job.strike(blow)
            while job.running and job.now() < schedule.ends_at:
                job.turn(0.2)
            job.heal()
            how = check(job, must_go_on=schedule.must_go_on)
    except ChaosFailure as failure:
        raise AssertionError(f"{schedule}\n{failure}\n{replay(schedule)}") from None
    return f"seed {schedule.seed}: {how}, in {time.monotonic() - begun:.0f} s"


def replay(schedule: Schedule) -> str:
    """Return the command that runs it again."""
    return f"again: python -m tests.harness.process.chaos --seed {schedule.seed} {schedule.options}"
