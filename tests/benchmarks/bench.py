"""Restart latencies of the in-process wrapper, alone or beside NVRx 0.4.1 in one run: `make bench`, `make bench-peer`.

    python tests/benchmarks/bench.py [--peer PYTHON] [--only P1,P2] [--backend nccl] [--reps N] [--many N] [--quick]
        [--json FILE]

The columns take turns within each figure, so that a change of the machine's load hits all of them. Nothing is
asserted: the exit code is 0 whatever the figures are.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import pathlib
import random
import signal
import sys
import time
from collections.abc import Callable

from figures import COLUMNS, FIGURES, OURS, Column, Figure
from launch import become_subreaper, launch
from machine import Usage, wait_calm
from report import NOTES, Ending, environment_lines, failures, table, write_json
from samples import Sample

__all__ = ["main"]

LINE = 12
"""Samples of a launch that its line of progress shows."""
ROOT = str(pathlib.Path(__file__).resolve().parents[2])


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter of an environment with nvidia-resiliency-ext")
    parser.add_argument("--only", default="", help="figures, for example P1,P3 (default: all)")
    parser.add_argument("--columns", default="", help="columns by name, separated by ';' (default: all)")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="of the ranks' collectives (gloo)")
    parser.add_argument("--reps", type=int, default=5, help="samples of each figure at least (default: 5)")
    parser.add_argument("--many", type=int, default=200, help="samples for rows of the slowest of a hundred (200)")
    parser.add_argument("--quick", action="store_true", help="one round of each figure, peer at its defaults only")
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which faults are injected")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for a calm machine, each launch")
    parser.add_argument("--json", metavar="FILE", help="write all samples there")
    options = parser.parse_args()
    if options.peer and not os.access(options.peer, os.X_OK):
        parser.error(f"--peer: {options.peer} is no interpreter; `make bench-peer` sets one up")
    return options


def chosen_columns(options: argparse.Namespace) -> list[Column]:
    """Returns the columns to run."""
    columns = [column for column in COLUMNS if column.ours or options.peer]
    if options.quick:
        columns = columns[:2]
    names = [name.strip() for name in options.columns.split(";") if name.strip()]
    return [column for column in columns if not names or column.name in names]


def chosen_figures(options: argparse.Namespace) -> list[Figure]:
    """Returns the figures to run; an unknown key ends the program."""
    keys = [key.strip().upper() for key in options.only.split(",") if key.strip()]
    known = {figure.key.upper(): figure for figure in FIGURES}
    if unknown := [key for key in keys if key not in known]:
        sys.exit(f"--only: no figure {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[key] for key in keys] if keys else list(FIGURES)


class Bench:
    """One run: the samples so far by column, and how each launch ended."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.columns = chosen_columns(options)
        self.figures = chosen_figures(options)
        self.reps, self.many = (1, 1) if options.quick else (options.reps, max(options.reps, options.many))
        self.patience: float = options.patience
        self.backend: str = options.backend
        self.pythons = {"ours": sys.executable, **({"peer": os.path.abspath(options.peer)} if options.peer else {})}
        self.results: dict[str, list[Sample]] = {column.name: [] for column in self.columns}
        self.launches: list[Ending] = []
        self._chance = random.Random(options.seed)

    def run(self) -> None:
        """Runs every figure, the columns in turn."""
        for figure in self.figures:
            if figure.alone is not None and OURS in self.results:
                self._alone(figure, figure.alone)
            columns = [column for column in self.columns if column.ours or column.name in figure.peers]
            rounds = {
                column.name: math.ceil(self._wanted(figure, column) / figure.per_round(column)) for column in columns
            }
            for number in range(max(rounds.values(), default=0)):
                for column in columns:
                    if number < rounds[column.name]:
                        self._round(figure, column)

    def _wanted(self, figure: Figure, column: Column) -> int:
        return self.many if figure.many and column.ours else self.reps

    def _alone(self, figure: Figure, run: Callable[[int], list[Sample]]) -> None:
        wait_calm(self.patience)
        load, usage, begin = os.getloadavg()[0], Usage(), time.monotonic()
        samples = run(self.reps)
        self.results[OURS] += samples
        self.launches.append(Ending(figure.key, OURS, (), 0, load, usage.others(), time.monotonic() - begin))
        print(f"{self.launches[-1]}: {values_of(figure, samples)}", file=sys.stderr)

    def _round(self, figure: Figure, column: Column) -> None:
        python = self.pythons["ours" if column.ours else "peer"]
        for job in figure.jobs(column, self._chance):
            wait_calm(self.patience)
            path = ROOT if column.ours else None
            told = dataclasses.replace(job, backend=self.backend)
            done = launch(told, python, ranks=figure.ranks, limit=figure.limit, import_path=path)
            samples = figure.read(done)
            self.results[column.name] += samples
            self.launches.append(Ending(figure.key, column.name, done.codes, done.left, *done.usage))
            print(f"{self.launches[-1]}: {values_of(figure, samples)}", file=sys.stderr)


def values_of(figure: Figure, samples: list[Sample]) -> str:
    """Returns the samples of a launch that are rows of the table, in seconds."""
    names = {metric.name for metric in figure.metrics}
    shown = [sample for sample in samples if sample.metric in names]
    if len(shown) > LINE:
        return f"{len(shown)} samples"
    return ", ".join(f"{s.metric} {'failed' if s.value is None else f'{s.value:.4g}'}" for s in shown)


def main() -> None:
    """Runs the figures of the command line and prints the table."""
    options = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    become_subreaper()
    bench = Bench(options)
    try:
        bench.run()
    except KeyboardInterrupt:
        print("interrupted: the table has only what was measured until here")
    environment = environment_lines(bench.pythons, bench.launches)
    print("\n".join(environment), "", table(bench.figures, bench.results), "", NOTES, sep="\n")
    print("\n".join(failures(bench.figures, bench.results)))
    if options.json:
        write_json(options.json, environment, bench.results, bench.launches)


if __name__ == "__main__":
    main()
