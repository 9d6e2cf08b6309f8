"""The one schema of the event files. Pure.

A directory has one file a rank, `events-<initial_rank>.jsonl`; a line is one JSON object with the common fields and
those of its event. Readers keep fields they do not know. Times in fields are seconds of the monotonic clock of the host
that wrote the line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["COMMON", "EVENTS", "GLOB", "MAX_LINE", "SCHEMA", "file_name"]

SCHEMA: Final = 1
"""The number of this schema, in each line."""
GLOB: Final = "events-*.jsonl"
"""Finds the files of a directory."""
MAX_LINE: Final = 1 << 20
"""No line is longer, in bytes."""

COMMON: Final = ("schema", "event", "wall", "monotonic", "host", "boot_id", "pid", "initial_rank", "iteration")
"""The fields of every event."""

EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "call_entered": ("world_size",),
    "fault": ("rank", "interruption", "message", "origin", "category", "struck", "announced"),
    "restart": ("ended_iteration", "cause", "culprits", "lost", "rank", "world_size", "active", "marks"),
    "completed": (),
    "left": ("reason",),
    "monitor_replaced": ("reason",),
    "straggler": ("ranks", "seconds"),
    "stacks": ("threads",),
    "store_lost": ("endpoint",),
}
"""Each event and its own fields."""


def file_name(initial_rank: int) -> str:
    """The name of a rank's event file."""
    return f"events-{initial_rank}.jsonl"
