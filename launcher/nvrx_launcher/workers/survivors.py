"""What keeps a process that was sent SIGKILL."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["survivor"]


def survivor(pid: int) -> str:
    """Return a sentence about a process that survives SIGKILL, with the state of the thread that keeps it."""
    states = dict[str, str]()
    with suppress(OSError):
        for task in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            with suppress(OSError, IndexError):
                states.setdefault(_state(Path(f"/proc/{pid}/task/{task}")), task)
    state = next((each for each in ("D", "T", "R", "S") if each in states), next(iter(states), "unknown"))
    where = _waits_in(pid, states[state]) if state in states else ""
    return f"pid {pid} survives SIGKILL (state {state}{where})"


def _state(task: Path) -> str:
    return task.joinpath("stat").read_text().rpartition(") ")[2][0]


def _waits_in(pid: int, task: str) -> str:
    """Return the kernel function in which a thread waits, where this user may know it."""
    with suppress(OSError):
        name = Path(f"/proc/{pid}/task/{task}/wchan").read_text()
        return f", in {name}" if name not in ("", "0") else ""
    return ""
