"""What /proc says of a process or one of its threads (proc(5))."""

from __future__ import annotations

import os
from pathlib import Path

from nvrx_core.values import value

__all__ = ["ProcStat", "read_stat", "read_text", "read_wchan"]


@value
class ProcStat:
    """Fields of /proc/<pid>/stat; a number is -1 where the kernel does not tell it.

    Attributes:
        name: the name of the program, or of the thread.
        state: a letter: R for what can run, T for stopped, Z and X for dead, D for a wait that no signal ends.
        parent: the pid of the parent.
        start: when it was started, clock ticks.
        exit_status: the wait status of a zombie, for whoever may trace it.
    """

    name: str
    state: str
    parent: int
    start: int
    exit_status: int


def read_stat(pid: int, task: int | None = None, *, proc: Path = Path("/proc")) -> ProcStat | None:
    """Return the fields of a process, or of a thread of it; None when there is no such one.

    Args:
        pid: the process.
        task: the kernel's id of the thread.
        proc: the mounted proc file system.
    """
    name, _, rest = read_text(proc / _folder(pid, task) / "stat").rpartition(")")
    if not (fields := rest.split()):
        return None
    parent, start, status = (int(fields[index]) if index < len(fields) else -1 for index in (1, 19, 49))
    return ProcStat(name.partition("(")[2], fields[0], parent, start, status)


def read_wchan(pid: int, task: int | None = None) -> str:
    """Return the kernel function in which a thread, by default the main one, sleeps; "" where this is not told."""
    return read_text(Path("/proc", _folder(pid, task), "wchan")).strip("0")


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file, without white space around it; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _folder(pid: int, task: int | None) -> str:
    return str(pid) if task is None else f"{pid}/task/{task}"
