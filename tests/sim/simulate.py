"""Runs simulated schedules: `python -m tests.sim.simulate --schedules 200000 --ranks 3..16 --seed 1`."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable, Sequence

from .options import Options
from .schedule import Failure, Schedule

__all__ = ["main", "replay_command", "run", "search"]


def replay_command(seed: int, ranks: tuple[int, int]) -> str:
    """What replays one schedule."""
    return f"python -m tests.sim.simulate --schedules 1 --ranks {ranks[0]}..{ranks[1]} --seed {seed}"


def run(seed: int, ranks: tuple[int, int]) -> Schedule:
    """Run one schedule.

    Raises:
        Failure: when an invariant does not hold; it begins with the command that replays the schedule.
    """
    try:
        schedule = Schedule(Options.draw(seed, *ranks))
        schedule.run()
    except Failure as failure:
        raise Failure(f"{replay_command(seed, ranks)}\n{failure}") from None
    return schedule


def _range(text: str) -> tuple[int, int]:
    fewest, _, most = text.partition("..")
    return int(fewest), int(most or fewest)


def search(schedules: Iterable[int], ranks: tuple[int, int], seconds: float = math.inf) -> str:
    """Run schedules, as many as fit in the time; returns the figures.

    Raises:
        Failure: when an invariant does not hold.
    """
    begun, done, events, restarts = time.perf_counter(), 0, 0, 0
    for seed in schedules:
        schedule = run(seed, ranks)
        done, events = done + 1, events + schedule.world.events
        restarts += max(schedule.entries, default=0)
        if time.perf_counter() - begun > seconds:
            break
    spent = time.perf_counter() - begun
    speed = f"{done / spent:,.0f} schedules/s, {events / spent:,.0f} events/s"
    return f"{done:,} schedules, {restarts:,} restarts, {events:,} events in {spent:.1f} s: {speed}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the schedules; the exit status says whether all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.simulate", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--ranks", type=_range, default=(2, 8), metavar="N..M")
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others follow it")
    given = parser.parse_args(arguments)
    try:
        print(search(range(given.seed, given.seed + given.schedules), given.ranks))
    except Failure as failure:
        print(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
