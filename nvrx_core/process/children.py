"""The children of this process, and the orphans that it has adopted.

A process that is PID 1 of its namespace, or a subreaper (PR_SET_CHILD_SUBREAPER), becomes the parent of all processes
below it whose own parents have ended, so that none leaves its sight. It must reap them; its own children are reaped by
the code that has started them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from nvrx_core.process.lifeline import is_running

__all__ = [
    "adopted",
    "become_subreaper",
    "children_of",
    "descendants_of",
    "name_processes",
    "note_child",
    "reap_adopted",
    "running_in_group",
]

PR_SET_CHILD_SUBREAPER: Final = 36
NAMED: Final = 8
"""Processes in a line."""
COMMAND: Final = 80
"""Characters of a command in it."""
_own: Final = set[int]()


def become_subreaper(is_on: bool = True) -> None:
    """Adopt the orphans among the processes below this one from now on.

    Raises:
        OSError: when the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(is_on)):
        error = ctypes.get_errno()
        raise OSError(error, f"PR_SET_CHILD_SUBREAPER: {os.strerror(error)}")


def note_child(pid: int) -> None:
    """Record a child that this process has started, and reaps itself."""
    _own.add(pid)


def reap_adopted() -> None:
    """Reap the adopted orphans that have ended."""
    for pid in adopted():
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def adopted() -> set[int]:
    """Return the adopted orphans, those that have ended and are not reaped included."""
    children = set(children_of(os.getpid()))
    for pid in _own - children:  # the kernel's list may lack some, and the pids of those that are gone are used again
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            _own.discard(pid)
    return children - _own


def children_of(pid: int) -> list[int]:
    """Return the children of a process, those that have ended and are not reaped included; none if it is gone."""
    found, files = list[int](), list(Path(f"/proc/{pid}/task").glob("*/children"))
    for file in files:
        with suppress(OSError):
            found += map(int, file.read_text(encoding="ascii").split())
    return found if files else _children_by_parent(pid)


def _children_by_parent(pid: int) -> list[int]:
    """Return the children of a process where the kernel has no list of them (CONFIG_PROC_CHILDREN)."""
    found = list[int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            if int(stat.read_bytes().rpartition(b")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def descendants_of(pid: int, *, without: Iterable[int] = ()) -> list[int]:
    """Return the running processes below a process.

    Args:
        pid: the process.
        without: children that are left out, with all below them.
    """
    left, out = [pid], set(without)
    found = dict[int, None]()
    while left:
        new = [child for child in children_of(left.pop()) if child not in out and child not in found]
        found.update(dict.fromkeys(new))
        left += new
    return [each for each in found if is_running(each)]


def running_in_group(group: int) -> list[int]:
    """Return the running processes of a process group, without its leader."""
    found = list[int]()
    for name in filter(str.isdigit, os.listdir("/proc")):
        pid = int(name)
        with suppress(OSError):
            if pid != group and os.getpgid(pid) == group and is_running(pid):
                found.append(pid)
    return sorted(found)


def name_processes(pids: Iterable[int]) -> str:
    """Return the pids and commands of processes, for a line."""
    found = list(pids)
    names = [f"pid {pid} ({_command(pid)})" for pid in found[:NAMED]]
    more = [f"{len(found) - NAMED} more"] if len(found) > NAMED else []
    return ", ".join([*names, *more])


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode(errors="replace").strip()[:COMMAND]
    return "it has ended"
