"""The schema of the event files. Pure.

A directory has one file per rank, `events-<initial_rank>.jsonl`, and one per launcher. A line is one JSON object with
the common fields and the fields of its event. Readers keep unknown fields. Times in fields are seconds of the monotonic
clock of the host that wrote the line.

The lines of a launcher have -1 for `initial_rank`; `iteration` is the number of the cycle, -1 before the first one.
`verdict` of a `cycle_verdict` is the object that `nvrx-why --json` prints.

A `restart_verdict` is what the cause of a `restart` is called, by what its rank has reported, as `nvrx-why` gives it;
`culprits` of the `restart` are who is to blame. The new rank 0 writes it once its call has gone on for a second.

A `rank_hung` is a rank that its monitor is about to end. Its end is the `worker_failed` of that rank, or `recovered`:
the rank has gone on, or has exited in order, and was not ended. The end of the cycle is that of all others, as of a
rank that exits with code 0 on a `rank_termination_signal` that it handles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = [
    "COMMON", "EVENTS", "GLOB", "LAUNCHER", "LAUNCHER_EVENTS", "MAX_LINE", "SCHEMA", "file_name", "launcher_file_name",
]  # fmt: skip

SCHEMA: Final = 1
"""The version of the schema, written in each line."""
GLOB: Final = "events-*.jsonl"
"""The pattern of the event files in a directory."""
MAX_LINE: Final = 1 << 20
"""The maximum length of a line, in bytes."""

LAUNCHER: Final = -1
"""What a launcher writes for `initial_rank`."""

COMMON: Final = ("schema", "event", "wall", "monotonic", "host", "boot_id", "pid", "initial_rank", "iteration")
"""The fields of every event."""

EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "call_entered": ("world_size",),
    "fault": (
        "rank", "faulty_initial_rank", "interruption", "message", "origin", "category", "occurred", "announced",
    ),
    "exception": ("traceback",),
    "restart": ("ended_iteration", "cause", "culprits", "lost", "rank", "world_size", "active", "marks"),
    "restart_verdict": ("ended_iteration", "class", "error_type", "action", "confidence"),
    "completed": (),
    "left": ("reason",),
    "monitor_replaced": ("reason",),
    "straggler": ("ranks", "seconds"),
    "hang_verdict": ("outcome", "ranks", "missing", "confidence", "sentence"),
    "stacks": ("threads",),
    "store_lost": ("endpoint",),
}  # fmt: skip
"""The events of ranks and the fields of each."""

LAUNCHER_EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "launcher_started": ("workers", "run_id"),
    "joined": ("node",),
    "cycle_started": ("reason", "world_size", "first_rank", "workers"),
    "spare": ("reason",),
    "worker_failed": ("rank", "code", "reason", "in_process"),
    "rank_hung": ("rank", "worker", "reason", "stack"),
    "recovered": ("rank", "worker", "reason"),
    "hang_verdict": ("outcome", "ranks", "missing", "confidence", "sentence"),
    "straggler_found": ("ranks", "node_host", "sections", "sentence"),
    "straggler_over": ("ranks", "node_host", "sections", "sentence"),
    "rank_lost": ("rank",),
    "request": ("rank", "action", "reason"),
    "rank_monitor_replaced": ("local_rank", "reason"),
    "control_store_lost": ("reason",),
    "cycle_stopped": ("reason",),
    "cycle_verdict": ("sentence", "verdict"),
    "cycle_attribution": ("advice", "reason", "explanation"),
    "launcher_ended": ("code", "reason"),
}
"""The events of launchers and the fields of each."""


def file_name(initial_rank: int) -> str:
    """Return the name of a rank's event file."""
    return f"events-{initial_rank}.jsonl"


def launcher_file_name(host: str, pid: int) -> str:
    """Return the name of a launcher's event file."""
    return f"events-launcher-{host}-{pid}.jsonl"
