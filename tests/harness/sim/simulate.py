"""Runs simulated schedules: `python -m tests.harness.sim.simulate --schedules 200000 --jobs 2`.

A schedule that fails is run again with its history, and its seed is kept in `tests/harness/sim/seeds`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import hashlib
import json
import multiprocessing
import os
import pathlib
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from .options import Options
from .schedule import Failure, Schedule

__all__ = ["SEEDS", "Figures", "Ranks", "digest", "keep", "main", "replay_command", "run", "search"]

SEEDS: Final = pathlib.Path(__file__).with_name("seeds")
Ranks = tuple[int, int]
COLLECT_AFTER: Final = 500
"""Ranks that have left what little `Schedule.release` does not free."""


@dataclass
class Figures:
    """The totals of schedules."""

    schedules: int = 0
    restarts: int = 0
    events: int = 0
    recovering: int = 0
    ranks: Counter[int] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)

    def add(self, schedule: Schedule) -> None:
        """Count a schedule."""
        self.schedules += 1
        self.restarts += schedule.restarts
        self.events += schedule.world.events
        self.recovering += schedule.recovering
        self.ranks[schedule.options.ranks] += 1
        for what, times in schedule.injected.items():
            self.injected[what] += times

    def __add__(self, other: Figures) -> Figures:
        both = zip(vars(self).items(), vars(other).values(), strict=True)
        return Figures(**{name: mine + theirs for (name, mine), theirs in both})

    def text(self, seconds: float, cpu_seconds: float) -> str:
        """Return the totals as text.

        Args:
            seconds: that it took.
            cpu_seconds: of all processes, which a busy machine changes less.
        """
        ranks = ", ".join(f"{ranks}: {self.ranks[ranks] / self.schedules:.1%}" for ranks in sorted(self.ranks))
        faults = ", ".join(f"{what} {times:,}" for what, times in self.injected.most_common())
        return (
            f"{self.schedules:,} schedules in {seconds:.1f} s: {self.schedules / seconds:,.0f} schedules/s, "
            f"{self.schedules / cpu_seconds:,.0f} a second of CPU time, "
            f"{self.events:,} events, {self.events / seconds:,.0f} events/s\n"
            f"  {self.injected.total():,} faults, {self.recovering:,} of them during a recovery ({faults}), "
            f"{self.restarts:,} restarts\n  ranks {ranks}"
        )


def replay_command(seed: int, ranks: Ranks) -> str:
    """What replays one schedule."""
    return f"python -m tests.harness.sim.simulate --schedules 1 --ranks {ranks[0]}..{ranks[1]} --seed {seed}"


def run(seed: int, ranks: Ranks) -> Schedule:
    """Run one schedule.

    Raises:
        Failure: when an invariant does not hold; it begins with the command that replays the schedule.
    """
    options = Options.draw(seed, *ranks)
    schedule = Schedule(options)
    try:
        schedule.run()
    except Failure as failure:
        raise Failure(f"{replay_command(seed, ranks)}\n{_told(options, failure)}") from None
    return schedule


def _told(options: Options, failure: Failure) -> Failure:
    """The failure with its history, which is not kept before something fails."""
    try:
        Schedule(options, remembers=True).run()
    except Failure as again:
        return again
    return Failure(f"differs from run to run: {failure}")


def keep(seed: int, ranks: Ranks, why: str, folder: pathlib.Path = SEEDS) -> pathlib.Path:
    """Keep a seed: `test_a_kept_seed_passes` runs it."""
    path = folder / f"{ranks[0]}-{ranks[1]}-{seed}.json"
    path.write_text(json.dumps({"seed": seed, "ranks": ranks, "why": why}, indent=1) + "\n")
    return path


def search(seeds: Iterable[int], ranks: Ranks, folder: pathlib.Path = SEEDS) -> Figures:
    """Run schedules; one that fails is kept.

    Raises:
        Failure: when an invariant does not hold.
    """
    figures, released = Figures(), 0
    with _without_collection():
        for seed in seeds:
            try:
                schedule = run(seed, ranks)
            except Failure as failure:
                kept = keep(seed, ranks, str(failure).splitlines()[1], folder)
                raise Failure(f"{failure}\nkept in {kept}") from None
            figures.add(schedule)
            schedule.release()
            released += schedule.options.ranks
            if released >= COLLECT_AFTER:
                gc.collect(0)
                released = 0
    return figures


def digest(seeds: Iterable[int], ranks: Ranks) -> str:
    """Return a digest of all histories: the same before and after a change that is to change no schedule."""
    whole = hashlib.sha256()
    for seed in seeds:
        schedule = Schedule(Options.draw(seed, *ranks), remembers=True)
        schedule.run()
        whole.update(f"{schedule.world.history(0)}\n{schedule.restarts}\n".encode())
        schedule.release()
    return whole.hexdigest()


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no garbage: what lives is looked at in vain while a schedule runs, and each is released at its end."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@dataclass(frozen=True)
class Share:
    """What one process runs."""

    seeds: range
    ranks: Ranks
    folder: pathlib.Path

    def search(self) -> Figures | str:
        """The figures, or what failed."""
        try:
            return search(self.seeds, self.ranks, self.folder)
        except Failure as failure:
            return str(failure)


def _search_all(whole: Share, jobs: int) -> list[Figures | str]:
    """Each process takes every n-th seed."""
    shares = [dataclasses.replace(whole, seeds=whole.seeds[job::jobs]) for job in range(jobs)]
    if jobs == 1:
        return [whole.search()]
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        return pool.map(Share.search, shares, chunksize=1)


def _cpu_time() -> float:
    """Return the seconds of CPU time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def _range(text: str) -> Ranks:
    fewest, _, most = text.partition("..")
    return int(fewest), int(most or fewest)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the schedules; the exit status says whether all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.sim.simulate", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--ranks", type=_range, default=(3, 16), metavar="N..M")
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others follow it")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seeds", type=pathlib.Path, default=SEEDS, help="where a failing seed is kept")
    parser.add_argument("--digest", action="store_true", help="print a digest of the histories only")
    given = parser.parse_args(arguments)
    if given.digest:
        print(digest(range(given.seed, given.seed + given.schedules), given.ranks))
        return 0
    begun, used = time.perf_counter(), _cpu_time()
    whole = Share(range(given.seed, given.seed + given.schedules), given.ranks, given.seeds)
    found = _search_all(whole, given.jobs)
    failures = [each for each in found if isinstance(each, str)]
    figures = sum((each for each in found if isinstance(each, Figures)), Figures())
    print("\n\n".join(failures) or figures.text(time.perf_counter() - begun, _cpu_time() - used))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
