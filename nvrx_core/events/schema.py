"""The schema of the event files. Pure.

A directory has one file per rank, `events-<initial_rank>.jsonl`. A line is one JSON object with the common fields and
the fields of its event. Readers keep unknown fields. Times in fields are seconds of the monotonic clock of the host
that wrote the line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["COMMON", "EVENTS", "GLOB", "MAX_LINE", "SCHEMA", "file_name"]

SCHEMA: Final = 1
"""The version of the schema, written in each line."""
GLOB: Final = "events-*.jsonl"
"""The pattern of the event files in a directory."""
MAX_LINE: Final = 1 << 20
"""The maximum length of a line, in bytes."""

COMMON: Final = ("schema", "event", "wall", "monotonic", "host", "boot_id", "pid", "initial_rank", "iteration")
"""The fields of every event."""

EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "call_entered": ("world_size",),
    "fault": ("rank", "interruption", "message", "origin", "category", "struck", "announced"),
    "exception": ("traceback",),
    "restart": ("ended_iteration", "cause", "culprits", "lost", "rank", "world_size", "active", "marks"),
    "completed": (),
    "left": ("reason",),
    "monitor_replaced": ("reason",),
    "straggler": ("ranks", "seconds"),
    "stacks": ("threads",),
    "store_lost": ("endpoint",),
}
"""The events and the fields of each."""


def file_name(initial_rank: int) -> str:
    """Return the name of a rank's event file."""
    return f"events-{initial_rank}.jsonl"
