"""The children of this process, and the orphans that it has adopted.

A process that is PID 1 of its namespace, or a subreaper (PR_SET_CHILD_SUBREAPER), becomes the parent of all processes
below it whose own parents have ended, so that none leaves its sight. It must reap them; its own children are reaped by
the code that has started them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from nvrx_core.process.libc import libc
from nvrx_core.process.lifeline import is_running, is_stopped, open_pidfd
from nvrx_core.process.proc import read_stat
from nvrx_core.process.waiting import readable

__all__ = [
    "adopted",
    "become_subreaper",
    "children_of",
    "descendants_of",
    "end_child",
    "kill_tree",
    "name_processes",
    "note_child",
    "reap_adopted",
    "running_in_group",
    "start_child",
    "watch_child",
]

PR_SET_CHILD_SUBREAPER: Final = 36
NAMED: Final = 8
"""Processes in a line."""
COMMAND: Final = 80
"""Characters of a command in it."""
STOP_TIMEOUT: Final = 1.0
"""Seconds that SIGSTOP has; a process that waits in the kernel for storage does not stop, and starts no child."""
REAP_TIMEOUT: Final = 1.0
"""Seconds that the end of a child has that cannot be watched."""
_own: Final = set[int]()


def become_subreaper(is_on: bool = True) -> None:
    """Adopt the orphans among the processes below this one from now on.

    Raises:
        OSError: when the kernel refuses.
    """
    if libc().prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(is_on)):
        error = ctypes.get_errno()
        raise OSError(error, f"PR_SET_CHILD_SUBREAPER: {os.strerror(error)}")


def note_child(pid: int) -> None:
    """Record a child that this process has started, and reaps itself."""
    _own.add(pid)


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program as a child that this process reaps, by `end_child` at last.

    Args:
        command: program and arguments.
        options: those of `Popen`.

    Raises:
        OSError: when it cannot be started.
    """
    child = subprocess.Popen(command, **options)
    note_child(child.pid)
    return child


def watch_child(child: subprocess.Popen[bytes]) -> int:
    """Return a descriptor that becomes readable when a child exits; a child for which there is none is ended.

    Raises:
        OSError: when there is none.
    """
    try:
        return open_pidfd(child.pid)
    except OSError:
        end_child(child, REAP_TIMEOUT)
        raise


def end_child(child: subprocess.Popen[bytes], within: float) -> int | None:
    """Kill a child unless it has exited, reap it, and close its pipes.

    Args:
        child: the child.
        within: seconds that it has to end in; in a system call that does not return, SIGKILL does not end it.

    Returns:
        Its exit code, negative for a signal; None for a child that is left behind.
    """
    with suppress(PermissionError):  # it has become another user's
        child.kill()
    code = None
    try:
        code = child.wait(within)
    except subprocess.TimeoutExpired:
        child.returncode = -signal.SIGKILL  # else Popen warns that nobody waits for it
    for pipe in filter(None, (child.stdin, child.stdout, child.stderr)):
        with suppress(OSError):  # what it has not read is lost
            pipe.close()
    return code


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
    for each in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if (stat := read_stat(each)) is not None and stat.parent == pid:
            found.append(each)
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


def kill_tree(root: int, within: float) -> list[int]:
    """Kill a process and all processes below it, and wait for their ends.

    All are stopped before any is killed: the children of one that has ended are no longer below it. SIGSTOP does not
    break off a fork, so the children of a process are read again once it has stopped.

    Args:
        root: the process.
        within: seconds that they have to end in once they are killed.

    Returns:
        Those that have not ended in that time.
    """
    found, pidfds = dict[int, None](), dict[int, int]()
    stop_deadline = time.monotonic() + STOP_TIMEOUT
    try:
        are_stopped = False
        while _stop_tree(root, found) or not (are_stopped or time.monotonic() >= stop_deadline):
            os.sched_yield()
            are_stopped = all(is_stopped(pid) or not is_running(pid) for pid in found)
        for pid in found:
            with suppress(ProcessLookupError):
                pidfds[open_pidfd(pid)] = pid
    finally:
        for pid in found:
            _signal(pid, signal.SIGKILL)
        left, deadline = set(pidfds), time.monotonic() + within
        while left and (ended := readable(left, deadline - time.monotonic())):
            left.difference_update(ended)
        for pidfd in pidfds:
            os.close(pidfd)
    return [pidfds[pidfd] for pidfd in left]


def _stop_tree(root: int, found: dict[int, None]) -> bool:
    """Stop a process and all processes below it, the parents first; return whether there are others than `found`."""
    before, left = len(found), [root]
    while left:
        pid = left.pop()
        if pid not in found:
            found[pid] = None
            _signal(pid, signal.SIGSTOP)
        left += children_of(pid)
    return len(found) > before


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


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
