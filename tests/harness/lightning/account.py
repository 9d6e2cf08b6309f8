"""The samples that the ranks of a fit trained on, counted from their own records."""

from __future__ import annotations

import csv
from collections import Counter
from typing import Any

from tests.harness.process.job import Job

__all__ = [
    "Ends", "how_it_ended", "resumed_steps", "rows_of", "trained_on", "what_counted", "what_happened", "what_is_shown",
]  # fmt: skip

Ends = dict[int, tuple[int, int, str, str | None]]


def how_it_ended(job: Job) -> Ends:
    """Step, epoch, weights and error of each rank, by its final rank."""
    names = ("step", "epoch", "weights", "error")
    return {line["rank"]: tuple(line[name] for name in names) for line in job.lines("fitted")}


def resumed_steps(job: Job) -> dict[int, int]:
    """The global step from which each attempt resumed."""
    steps: dict[int, set[int]] = {}
    for line in job.lines("train_start"):
        steps.setdefault(line["attempt"], set()).add(line["step"])
    assert all(len(each) == 1 for each in steps.values()), steps
    return {attempt: step for attempt, (step,) in sorted(steps.items())}


def trained_on(job: Job) -> dict[int, Counter[int]]:
    """How often each sample of each epoch is in the final weights, without steps that a restart rolled back."""
    begins = resumed_steps(job)
    epochs: dict[int, Counter[int]] = {}
    for line in job.lines("seen"):
        if _lasted(line, begins):
            epochs.setdefault(line["epoch"], Counter()).update(line["index"])
    return epochs


def what_happened(job: Job, *, epochs: bool) -> dict[int, list[dict[str, Any]]]:
    """The validations and epoch ends of each rank, in order, without those that a restart rolled back.

    With checkpoints of `epochs`, an event at the step of a checkpoint precedes it and is not rolled back.
    """
    begins = {attempt: step + epochs for attempt, step in resumed_steps(job).items()}
    kept = ("what", "step", "metrics", "mean", "epoch")
    events: dict[int, list[dict[str, Any]]] = {}
    for line in job.lines(""):
        if line["what"] in ("validated", "epoch_ended", "train_ended") and _lasted(line, begins):
            shown = {name: line[name] for name in kept if name in line}
            events.setdefault(line["initial_rank"], []).append(shown)
    return events


def what_counted(job: Job) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What each rank saw at each validation and end of an epoch, the last time that it took place."""
    kept = ("metrics", "mean", "epoch")
    return {
        (line["initial_rank"], line["what"], line["step"]): {name: line[name] for name in kept if name in line}
        for line in job.lines("")
        if line["what"] in ("validated", "epoch_ended", "train_ended")
    }


def what_is_shown(job: Job) -> dict[int, dict[str, dict[str, float]]]:
    """What the Trainer of each rank shows at the end: metrics, random state, the best value of a schedule."""
    return {line["rank"]: line["shown"] for line in job.lines("fitted")}


def rows_of(job: Job, name: str = "csv") -> list[dict[str, str]]:
    """The rows of a CSV logger, each with the values that it has."""
    (file,) = (job.directory / "logs" / name).glob("version_*/metrics.csv")
    rows = csv.DictReader(file.read_text().splitlines())
    return [{key: value for key, value in row.items() if value} for row in rows]


def _lasted(line: dict[str, Any], begins: dict[int, int]) -> bool:
    later = (step for attempt, step in begins.items() if attempt > line["attempt"])
    return line["step"] < min(later, default=1 << 30)
