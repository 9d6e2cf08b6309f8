"""Fault injection at the failpoints of the wrapper, in this process and in the monitor process that it forks.

Install a schedule before the wrapped function is called: the monitor process is forked then, and inherits it. The hits
of a failpoint are counted in memory that both share, so that the replacement of a monitor process continues the count
of its predecessor. Just before a fault is injected, a line is written to the record, if there is one; a test reads it
to assert that the failpoint was hit.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from nvrx_core import failpoint
from nvrx_core.testing.faults import Kind, inject
from nvrx_core.testing.schedule import FailpointTrigger, Schedule

__all__ = ["RECORD", "SCHEDULE", "clear", "install", "install_from_env", "read_record", "scheduled"]

SCHEDULE: Final = "NVRX_FAILPOINTS"
"""The variable from which `install_from_env` reads the schedule."""
RECORD: Final = "NVRX_FAILPOINTS_RECORD"
"""The variable with the path of the record."""


def install(schedule: Schedule | str, *, initial_rank: int, record: str | os.PathLike[str] | None = None) -> None:
    """Inject the faults of `schedule` at failpoints from now on; faults at steps are ignored.

    Args:
        schedule: a schedule or its text.
        initial_rank: this rank's initial rank.
        record: a file to which a JSON line is appended before each injection; see `read_record`.
    """
    faults = Schedule.parse(schedule) if isinstance(schedule, str) else schedule
    failpoint.install(_Hook(faults.hits(initial_rank), os.fspath(record) if record is not None else None))


def clear() -> None:
    """Stop injecting faults in this process."""
    failpoint.clear()


@contextmanager
def scheduled(
    schedule: Schedule | str, *, initial_rank: int, record: str | os.PathLike[str] | None = None
) -> Iterator[None]:
    """Call `install`, and `clear` on exit."""
    install(schedule, initial_rank=initial_rank, record=record)
    try:
        yield
    finally:
        clear()


def install_from_env(environ: Mapping[str, str]) -> bool:
    """Install the schedule of the environment: `NVRX_FAILPOINTS`, `NVRX_FAILPOINTS_RECORD` and `RANK`.

    Args:
        environ: usually `os.environ`; only this function reads these variables.

    Returns:
        Whether there is a schedule.

    Raises:
        ValueError: when the schedule is malformed.
    """
    text = environ.get(SCHEDULE, "")
    if text:
        install(text, initial_rank=int(environ.get("RANK", "0")), record=environ.get(RECORD))
    return bool(text)


def read_record(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the injected faults, each with `at` (monotonic seconds), `pid`, `hit` (as in a schedule) and `fault`."""
    file = Path(path)
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


class _Hook:
    """A hook that counts the hits of failpoints and injects the faults that are due."""

    def __init__(self, faults: Mapping[FailpointTrigger, Kind], record: str | None) -> None:
        self.faults, self.record = tuple(faults.items()), record
        self.counts = memoryview(mmap.mmap(-1, 8 * max(1, len(faults)))).cast("q")

    def __call__(self, name: str, iteration: int) -> None:
        due = [fault for number, fault in enumerate(self.faults) if self._is_due(number, name, iteration)]
        for hit, kind in due:
            inject(kind, stamp=lambda at, hit=hit, kind=kind: self._write(at, hit, kind))  # type: ignore[misc]

    def _is_due(self, number: int, name: str, iteration: int) -> bool:
        hit = self.faults[number][0]
        if (hit.failpoint, hit.iteration) != (name, iteration):
            return False
        self.counts[number] += 1
        return self.counts[number] == hit.nth

    def _write(self, at: float, hit: FailpointTrigger, kind: Kind) -> None:
        """Append a line by one write; open the file each time, because a monitor process closes the rank's files."""
        if self.record is None:
            return
        line = {"at": at, "pid": os.getpid(), "hit": str(hit), "fault": kind.value}
        file = os.open(self.record, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, (json.dumps(line) + "\n").encode())
        finally:
            os.close(file)
