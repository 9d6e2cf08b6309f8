"""The table: median (least to most) of each column, the ratio to the peer's defaults, the goal and whether it is met.

A sample that failed is shown as `good/all` in its cell, and a goal is met only when none of ours failed.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from figures import COLUMNS, DEFAULTS, OURS, Figure, Metric
from samples import Sample

__all__ = ["NOTES", "Ending", "Results", "environment_lines", "failures", "table", "write_json"]

Results = Mapping[str, list[Sample]]
"""The samples of all metrics by column."""

NOTES = """\
Latency: the injector's stamp to the first line of the function on the slowest rank; median (least .. most). p99: the
slowest of a hundred, of as many restarts as the row says (`--many`), for ours alone.
4 ranks, each a new process; the target is rank 1, rank 0 hosts the store; faults come at a random moment of a second.
Peer: group timeouts of 10 s and 2 s; `fastest` is intervals of 10 ms, `last_call_wait` and `termination_grace_time` 0,
heartbeats every 0.1 s. Its function builds a store on a new port in each iteration; ours calls `init_process_group()`.
P4, P5: soft timeout 1.5 s; hard timeout 3 s, in P4 ours 30 s. A timeout counts from the last sign of progress, so the
value may be below zero; ours is run with a `progress_watchdog_interval` of 10 ms, which leaves least of that gain.
P10: the store is a process of its own, as `python -m nvrx_core.store` starts it; its clients run on the same cores."""

VERSIONS = """
import importlib.metadata, json, platform
versions = {"python": platform.python_version()}
for name in ("torch", "nvidia-resiliency-ext"):
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(versions))
"""


@dataclass(frozen=True)
class Ending:
    """How a launch went: exit codes by rank, processes left behind, load before, cores that others used, seconds."""

    figure: str
    column: str
    codes: tuple[int | None, ...]
    left: int
    load: float
    others: float
    seconds: float

    def __str__(self) -> str:
        """Writes one line of progress."""
        odd = f", exit codes {self.codes}" if any(self.codes) or None in self.codes else ""
        odd += f", {self.left} processes left" if self.left else ""
        usage = f"{self.seconds:.1f} s, load {self.load:.1f}, others {self.others:.2f}"
        return f"{self.figure} {self.column} [{usage}{odd}]"


@dataclass(frozen=True)
class Cell:
    """The samples of one metric in one column."""

    values: tuple[float, ...]
    failed: int
    kept: int | None

    @property
    def median(self) -> float | None:
        """The median of the good samples; None without any."""
        return statistics.median(self.values) if self.values else None

    @property
    def worst(self) -> float | None:
        """The slowest of a hundred: the 99th percentile, the most of fewer than a hundred; None without any."""
        return sorted(self.values)[math.ceil(0.99 * len(self.values)) - 1] if self.values else None

    def value(self, metric: Metric) -> float | None:
        """What the metric's row is about."""
        return self.worst if metric.worst else self.median


def cell_of(results: Results, column: str, metric: Metric) -> Cell | None:
    """Returns the cell; None where the column was not run for the metric."""
    samples = [sample for sample in results.get(column, ()) if sample.metric == metric.name]
    if not samples or (metric.worst and column != OURS):
        return None
    values = tuple(sample.value for sample in samples if sample.value is not None)
    kept = sum(bool(sample.kept) for sample in samples) if metric.keeps else None
    return Cell(values, len(samples) - len(values), kept)


def duration(seconds: float, signed: bool = False) -> str:
    """Writes seconds with at most three digits and the unit that suits them."""
    size = abs(seconds)
    scale, unit = (1e6, "us") if size < 1e-3 else (1e3, "ms") if size < 1 else (1, "s")
    digits = 2 if size * scale < 10 else 1 if size * scale < 100 else 0
    return f"{seconds * scale:{'+' if signed else ''}.{digits}f} {unit}"


def limit_of(seconds: float) -> str:
    """Writes a goal, without digits that say nothing."""
    return f"{seconds * 1e6:g} us" if seconds < 1e-3 else f"{seconds * 1e3:g} ms"


def text_of(cell: Cell | None, metric: Metric) -> str:
    """Writes a cell: median (least to most), how many were good if not all, how many kept the rank."""
    if cell is None:
        return "n/a"
    total = len(cell.values) + cell.failed
    notes = [f"{len(cell.values)}/{total} good"] if cell.failed else []
    if cell.kept is not None:
        notes.append(f"rank kept {cell.kept}/{total}")
    tail = "".join(f", {note}" for note in notes)
    if cell.median is None or cell.worst is None:
        return f"none{tail}"
    if metric.worst:
        return f"**{duration(cell.worst)}** (of {len(cell.values)}){tail}"
    middle, low, high = (duration(value, metric.signed) for value in (cell.median, min(cell.values), max(cell.values)))
    return f"**{middle}** ({low} .. {high}){tail}"


def ratio_of(ours: Cell | None, peer: Cell | None, metric: Metric) -> float | None:
    """Returns how many times faster ours is; None where that has no meaning."""
    if ours is None or peer is None or not ours.median or not peer.median or metric.signed or metric.worst:
        return None
    return peer.median / ours.median


def goal_of(metric: Metric) -> str:
    """Writes the goal of a row."""
    name = "p99 " if metric.worst else ""
    parts = [f"{name}<= {limit_of(metric.limit)}"] if metric.limit is not None else []
    parts += [f">= {metric.ratio:.0f}x"] if metric.ratio is not None else []
    parts += ["rank kept"] if metric.keeps else []
    return ", ".join(parts) or "-"


def verdict(ours: Cell | None, ratio: float | None, metric: Metric) -> str:
    """Says whether the goal is met; a ratio counts only when the peer was run."""
    if ours is None or goal_of(metric) == "-":
        return "-"
    checks = {"failed": ours.failed == 0 and ours.median is not None}
    if metric.limit is not None and (value := ours.value(metric)) is not None:
        checks["slow"] = value <= metric.limit
    if metric.ratio is not None and ratio is not None:
        checks["ratio"] = ratio >= metric.ratio
    if ours.kept is not None:
        checks["rank lost"] = ours.kept == len(ours.values)
    missed = [name for name, good in checks.items() if not good]
    return f"no ({', '.join(missed)})" if missed else "yes"


def row(figure: Figure, metric: Metric, results: Results, columns: Iterable[str]) -> str:
    """Writes one row of the table."""
    cells = {name: cell_of(results, name, metric) for name in columns}
    ours = cells.get(OURS)
    ratio = ratio_of(ours, cells.get(DEFAULTS), metric)
    times = "-" if ratio is None else f"{ratio:.0f}x"
    texts = [text_of(cell, metric) for cell in cells.values()]
    fields = [figure.key, metric.text, *texts, times, goal_of(metric), verdict(ours, ratio, metric)]
    return f"| {' | '.join(fields)} |"


def table(figures: Iterable[Figure], results: Results) -> str:
    """Writes the Markdown table of the columns that were run."""
    columns = [column for column in COLUMNS if column.name in results]
    names = [column.name for column in columns]
    heads = [column.name if column.ours else f"peer, {column.name}" for column in columns]
    lines = [f"| # | what | {' | '.join(heads)} | faster | goal | met |", "|---" * (len(heads) + 5) + "|"]
    lines += [row(figure, metric, results, names) for figure in figures for metric in figure.metrics]
    return "\n".join(lines)


def failures(figures: Iterable[Figure], results: Results) -> list[str]:
    """Returns a line for each way in which samples of the table failed."""
    names = {metric.name for figure in figures for metric in figure.metrics}
    failed = [(column, s) for column, samples in results.items() for s in samples if s.note and s.metric in names]
    counts = Counter((column, s.metric, s.note) for column, s in failed)
    return [f"failed, {column}, {metric}, {count} times: {note}" for (column, metric, note), count in counts.items()]


def versions(python: str) -> str:
    """Returns the versions that matter in an interpreter's environment."""
    out = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout
    return ", ".join(f"{name} {version}" for name, version in json.loads(out).items())


def processor() -> str:
    """Returns the name of the processor as Linux tells it."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def spread(values: Iterable[float]) -> str:
    """Writes the median and the most of some values."""
    found = sorted(values) or [0.0]
    return f"median {statistics.median(found):.2f}, most {found[-1]:.2f}"


def shown_values(values: Iterable[float], unit: str) -> str:
    """Writes the median, the least and the most of some values of one unit."""
    found = sorted(values)
    return f"**{statistics.median(found):.3g} {unit}** ({found[0]:.3g} .. {found[-1]:.3g})" if found else "n/a"


def machine_lines(peer: str | None) -> list[str]:
    """Returns the lines that say where the figures of a run without launches of ours were taken."""
    found = [f"ours: {versions(sys.executable)}", *([f"peer: {versions(peer)}"] if peer else [])]
    return [*found, f"machine: {processor()}, {os.cpu_count()} cores; load average at the end {os.getloadavg()[0]:.1f}"]


def environment_lines(pythons: Mapping[str, str], launches: list[Ending]) -> list[str]:
    """Returns the lines that say where and how undisturbed the figures were taken."""
    lines = [f"{name}: {versions(python)}" for name, python in pythons.items()]
    lines.append(f"machine: {processor()}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}")
    lines.append(
        f"launches: {len(launches)}; processes left behind by one: most {max((e.left for e in launches), default=0)}"
    )
    lines.append(f"load average at their starts: {spread(ending.load for ending in launches)}")
    lines.append(f"cores in use by others meanwhile: {spread(ending.others for ending in launches)}")
    return lines


def write_json(path: str, environment: list[str], results: Results, launches: list[Ending]) -> None:
    """Writes all samples, the failed ones with their reason, and how each launch ended."""
    samples = {column: [asdict(sample) for sample in samples] for column, samples in results.items()}
    content = {"environment": environment, "samples": samples, "launches": [asdict(ending) for ending in launches]}
    pathlib.Path(path).write_text(json.dumps(content, indent=1) + "\n")
