"""The history of a job as text, printed when a test fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .job import Job

__all__ = ["history"]

_TAIL = 40
_QUIET = ("wall", "monotonic", "host", "boot_id", "schema", "what", "event", "at", "initial_rank", "usage", "step")


def history(job: Job) -> str:
    """The plan, one merged timeline of records and events, the exit codes, and the end of each stderr."""
    parts = [f"plan {json.dumps(job.plan.environment())}", f"exit codes {job.codes} of pids {job.pids}"]
    parts += _timeline(job)
    names: list[int | str] = [*sorted(job.pids), "store", "torchrun"]
    parts += [f"--- stderr of {name}\n{_tail(job.errors(name))}" for name in names if job.errors(name)]
    return "\n".join(parts)


def _timeline(job: Job) -> list[str]:
    records = [(line["at"], line["initial_rank"], "", line["what"], line) for line in job.lines("")]
    events = [(line["monotonic"], line["initial_rank"], "* ", line["event"], line) for line in job.events()]
    moments = sorted(records + events, key=lambda moment: moment[:2])
    start = moments[0][0] if moments else 0.0
    return [
        f"{(at - start) * 1e3:10.1f} ms  rank {rank}  {mark}{what} {_fields(line)}"
        for at, rank, mark, what, line in moments
        if what != "step" or line["step"] < 2
    ]


def _fields(line: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in line.items() if name not in _QUIET)


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL:])
