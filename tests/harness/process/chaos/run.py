"""Runs the jobs of seeds."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from .job import chaos_job
from .oracle import ChaosFailure, Watch, await_workers, check
from .schedule import Schedule

__all__ = ["play"]


def play(schedule: Schedule) -> str:
    """Run a job through its blows, with a short path to its files; return how it ended.

    Raises:
        ChaosFailure: when it did not go on or end as documented.
    """
    begun = time.monotonic()
    tag = f"chaos-{os.getpid()}-{schedule.seed}"
    try:
        with (
            tempfile.TemporaryDirectory(prefix="chaos-") as folder,
            chaos_job(schedule.shape, Path(folder), tag) as job,
        ):
            watch = Watch(job)
            if not schedule.is_early:
                await_workers(job)
                job.restart_clock()
            for blow in schedule.blows:
                watch.until(blow.at)
                job.strike(blow)
            watch.until(schedule.ends_at)
            job.heal()
            how = check(job, must_go_on=schedule.must_go_on)
    except ChaosFailure as failure:
        raise AssertionError(f"{schedule}\n{failure}\n{replay(schedule)}") from None
    struck = sum("nothing there" not in each for each in job.done)
    took = time.monotonic() - begun
    return f"seed {schedule.seed}: {how}, {struck} of {len(schedule.blows)} blows struck, in {took:.0f} s"


def replay(schedule: Schedule) -> str:
    """Return the command that runs it again."""
    return f"again: python -m tests.harness.process.chaos --seed {schedule.seed} {schedule.options}"
