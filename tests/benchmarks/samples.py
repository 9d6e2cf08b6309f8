"""From the stamps of a launch to figures: one sample for each fault, call or batch, failed ones included.

The latency of a restart runs from the injector's stamp to the first line of the function on the slowest rank of the
first later iteration that all ranks but the target entered. A sample without a value carries what went wrong.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from job import RUN, Fault
from launch import Launch

__all__ = ["Read", "Sample", "calls", "overheads", "restarts", "scale", "tree_calls", "with_cpu"]

HERE = pathlib.Path(__file__).resolve().parent
LOSING = ("kill", "gil")
MAY_LOSE = ("sleep", "lock", "recv")


@dataclass(frozen=True)
class Sample:
    """One measured value of a metric, in seconds, or the reason why there is none.

    Attributes:
        kept: whether the target's rank survived; None where the question has no meaning.
    """

    metric: str
    value: float | None
    note: str = ""
    kept: bool | None = None


Read = Callable[[Launch], list[Sample]]


def ended(launch: Launch) -> str:
    """Says how the launch ended, for a sample that is missing."""
    codes = ", ".join("ended by the bound" if code is None else str(code) for code in launch.codes)
    raised = [line for line in launch.log.splitlines() if "Error" in line]
    return f"exit codes: {codes}; last error: {raised[-1].strip()[:200] if raised else 'none'}"


def stamps(launch: Launch, event: str, after: int, needed: set[int]) -> dict[int, float]:
    """Returns the stamps by rank in the first iteration past `after`, of the same run, that has those of all needed."""
    rounds: dict[int, dict[int, float]] = {}
    for stamp in launch.events:
        if stamp.event == event and after < stamp.iteration < (after // RUN + 1) * RUN:
            rounds.setdefault(stamp.iteration, {}).setdefault(stamp.rank, stamp.at)
    full = (ranks for _, ranks in sorted(rounds.items()) if needed <= ranks.keys())
    return next(full, {})


def restart(launch: Launch, iteration: int, fault: Fault, metric: str) -> list[Sample]:
    """Returns the samples of one fault: re-entry, and the first step after it."""
    injected = [stamp.at for stamp in launch.events if stamp.event == "fault" and stamp.iteration == iteration]
    needed = set(range(launch.ranks))
    if fault.kind in LOSING + MAY_LOSE:
        needed -= {launch.job.target}
    samples = []
    for event, name in (("entered", metric), ("stepped", f"{metric}.step")):
        found = stamps(launch, event, iteration, needed)
        if injected and found:
            samples.append(Sample(name, max(found.values()) - injected[0], kept=launch.job.target in found))
        else:
            what = "no re-entry" if injected else "no fault was injected"
            samples.append(Sample(name, None, f"{what}; {ended(launch)}"))
    return samples


def restarts(metric: str, *, by_kind: bool = False, by_busy: bool = False, timeout: float = 0.0) -> Read:
    """Reads a sample of each scheduled fault.

    Args:
        metric: name of the metric; the first step is named `<metric>.step`.
        by_kind: the metric is `<metric>.<kind of fault>`.
        by_busy: the metric is `<metric>.<what the main threads do>`.
        timeout: seconds that belong to the timeout under test, taken off the value.
    """

    def read(launch: Launch) -> list[Sample]:
        samples, job = [], launch.job
        for run, (iteration, fault) in itertools.product(range(max(1, job.repeat)), enumerate(job.faults)):
            name = f"{metric}.{fault.kind}" if by_kind else f"{metric}.{job.busy}" if by_busy else metric
            for sample in restart(launch, RUN * run + iteration, fault, name):
                value = None if sample.value is None else sample.value - timeout
                samples.append(Sample(sample.metric, value, sample.note, sample.kept))
        return samples

    return read


def with_cpu(read: Read, metric: str) -> Read:
    """Reads the mean CPU seconds of a restart over all ranks as well, and those of their monitor processes."""

    def read_both(launch: Launch) -> list[Sample]:
        samples = read(launch)
        for name in ("cpu", "cpu.monitor"):
            rounds: dict[int, list[float]] = {}
            for stamp in launch.events:
                if stamp.event == name:
                    rounds.setdefault(stamp.iteration, []).append(stamp.value)
            samples += [Sample(f"{metric}.{name}", statistics.mean(values)) for values in rounds.values()]
        return samples

    return read_both


def overheads(launch: Launch) -> list[Sample]:
    """Reads entry (call to first line of the function) and exit (last return of it to return), slowest rank each."""
    by_event: dict[str, dict[int, float]] = {}
    for stamp in launch.events:
        by_event.setdefault(stamp.event, {}).setdefault(stamp.rank, stamp.at)
    called, entered, done, returned = (by_event.get(name, {}) for name in ("call", "entered", "done", "returned"))
    if len(returned) < launch.ranks:
        return [Sample(metric, None, ended(launch)) for metric in ("entry", "exit")]
    entry = max(entered[rank] - called[rank] for rank in called)
    return [Sample("entry", entry), Sample("exit", max(returned.values()) - max(done.values()))]


def calls(launch: Launch) -> list[Sample]:
    """Reads the seconds a call: the median of the launch's batches."""
    samples = []
    for metric in ("ping", "atomic"):
        batches = [stamp.value for stamp in launch.events if stamp.event == metric]
        found = Sample(metric, statistics.median(batches)) if batches else Sample(metric, None, ended(launch))
        samples.append(found)
    return samples


def scale(rounds: int, ranks: int, metric: str) -> list[Sample]:
    """Runs `scale.py`; the samples of all its metrics, or of the whole restart alone under another name."""
    command = [sys.executable, str(HERE / "scale.py"), "--ranks", str(ranks), "--rounds", str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return [Sample(metric, None, f"scale.py ended with exit code {done.returncode}")]
    found = json.loads(done.stdout)
    chosen = found if metric == "p10" else {metric: found["p10"]}
    return [Sample(name, value) for name, values in chosen.items() for value in values]


def tree_calls() -> list[Sample]:
    """Runs `tree.py`: the first call, which reads all keys, and the median of the later ones."""
    done = subprocess.run([sys.executable, str(HERE / "tree.py")], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return [Sample("p10.tree", None, f"tree.py ended with exit code {done.returncode}")]
    found = json.loads(done.stdout)
    return [Sample("p10.tree", found[name]) for name in ("first_call_s", "later_calls_median_s", "later_calls_worst_s")]
