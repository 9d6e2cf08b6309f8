"""JSON lines: what a rank tells the demo, and how the demo reads files that still grow.

Each line is one write to a file opened for appending: a rank that is killed or interrupted leaves whole lines. All
times are seconds of the machine's monotonic clock, which its processes share.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["Follower", "Journal", "Line"]

Line = dict[str, Any]


class Journal:
    """The journal of one rank.

    Args:
        folder: where it is written, as `journal-<initial_rank>.jsonl`.
        initial_rank: the rank's name in the job.
    """

    def __init__(self, folder: Path, initial_rank: int) -> None:
        self.initial_rank = initial_rank
        self._file = os.open(
            folder / f"journal-{initial_rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )

    def write(self, event: str, **fields: object) -> None:
        """Appends one line; its time is now, unless `monotonic` is among the fields."""
        line = {"event": event, "initial_rank": self.initial_rank, "monotonic": time.monotonic(), **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")


class Follower:
    """Reads what has been added to the `*.jsonl` files of a folder since it last looked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def lines(self) -> list[Line]:
        """The new lines of all files, in the order of their time."""
        fresh = [line for path in self._folder.glob("*.jsonl") for line in self._new_lines(path)]
        return sorted(fresh, key=lambda line: line["monotonic"])

    def _new_lines(self, path: Path) -> list[Line]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            whole = file.read().rpartition(b"\n")
        self._read[path] = self._read.get(path, 0) + len(whole[0]) + len(whole[1])
        return [json.loads(line) for line in whole[0].splitlines()]
