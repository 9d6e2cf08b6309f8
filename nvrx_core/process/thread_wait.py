"""What a thread of any process waits for, and which children of a process are dead, from /proc (proc(5)).

Nothing is stopped or asked. The system call of a thread of another process is readable for whoever may trace it; where
it is not, the name of the kernel function in which the thread sleeps tells as much.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from typing import Final

from nvrx_core.process import proc
from nvrx_core.process.children import children_of
from nvrx_core.values import value

__all__ = ["ThreadWait", "dead_children", "wait_of"]

_RUNTIME_BYTES: Final = 1 << 20
_DESCRIPTORS: Final = {
    "x86_64": {
        0: "data from", 19: "data from", 45: "data from", 47: "data from", 1: "a write to", 20: "a write to",
        44: "a write to", 46: "a write to", 43: "a connection to", 288: "a connection to", 42: "a connection by",
        73: "a lock on", 72: "a lock on", 74: "a write to", 75: "a write to",
    },
    "aarch64": {
        63: "data from", 65: "data from", 207: "data from", 212: "data from", 64: "a write to",
        66: "a write to", 206: "a write to", 211: "a write to", 202: "a connection to", 242: "a connection to",
        203: "a connection by", 32: "a lock on", 25: "a lock on", 82: "a write to", 83: "a write to",
    },
}  # fmt: skip
"""System calls whose first argument is a descriptor, and what a thread in one waits for."""
_CALLS: Final = {
    "x86_64": {
        202: "a lock", 230: "the end of a sleep", 35: "the end of a sleep", 61: "a child process",
        247: "a child process", 7: "a descriptor", 271: "a descriptor", 23: "a descriptor", 270: "a descriptor",
        232: "a descriptor", 281: "a descriptor", 34: "a signal", 130: "a signal", 128: "a signal",
        257: "the opening of a file",
    },
    "aarch64": {
        98: "a lock", 115: "the end of a sleep", 101: "the end of a sleep", 260: "a child process",
        95: "a child process", 73: "a descriptor", 72: "a descriptor", 22: "a descriptor", 133: "a signal",
        137: "a signal", 56: "the opening of a file",
    },
}  # fmt: skip
_SLEEPS: Final = (
    ("futex", "a lock"), ("nanosleep", "the end of a sleep"), ("pipe", "a pipe"), ("do_wait", "a child process"),
    ("poll", "a descriptor"), ("select", "a descriptor"), ("sock", "a socket"), ("sk_wait", "a socket"),
    ("unix_stream", "a socket"), ("wait_woken", "a socket"), ("inet_csk", "a connection"),
)  # fmt: skip
"""Parts of the names of kernel functions in which a thread sleeps."""
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}


@value
class ThreadWait:
    """What a thread waits for.

    Attributes:
        runs: it executes code, or waits for the interpreter's lock to do so.
        stopped: a signal has stopped its process.
        text: what it waits for, for people; "" if that is not known.
    """

    runs: bool
    stopped: bool
    text: str


def wait_of(pid: int, tid: int) -> ThreadWait:
    """Return what a thread waits for.

    Args:
        pid: its process; the calling one, or one that was forked from it or from which it was forked, without `exec`.
        tid: the kernel's id of the thread.
    """
    stat = proc.read_stat(pid, tid)
    state = "" if stat is None else stat.state
    if state == "T":
        return ThreadWait(False, True, "SIGCONT")
    if state == "D":
        sleeps = proc.read_wchan(pid, tid)
        return ThreadWait(False, False, f"the disk or a device ({sleeps})" if sleeps else "the disk or a device")
    words = proc.read_text(f"/proc/{pid}/task/{tid}/syscall").split()
    if words[:1] == ["running"] or (state == "R" and not words):
        return ThreadWait(True, False, "")
    if len(words) > 1:
        number, first = int(words[0]), int(words[1], 16)
        if number == _FUTEX.get(platform.machine()) and first in _interpreter():
            return ThreadWait(True, False, "")
        if text := _of_call(pid, number, first):
            return ThreadWait(False, False, text)
    sleeps = proc.read_wchan(pid, tid)
    return ThreadWait(False, False, next((text for part, text in _SLEEPS if part in sleeps), ""))


def _of_call(pid: int, number: int, first: int) -> str:
    machine = platform.machine()
    if (text := _CALLS.get(machine, {}).get(number)) is not None:
        return text
    if (text := _DESCRIPTORS.get(machine, {}).get(number)) is None:
        return ""
    try:
        target = os.readlink(f"/proc/{pid}/fd/{first}")
    except OSError:
        return f"{text} descriptor {first}"
    kind = target.partition(":")[0]
    return f"{text} a {kind}" if kind in ("socket", "pipe") else f"{text} {target}"


def dead_children(pid: int) -> Iterator[tuple[int, str]]:
    """Yield pid and name of the children of a process that are dead and were not reaped."""
    for child in children_of(pid):
        if (stat := proc.read_stat(child)) is not None and stat.state == "Z":
            yield child, stat.name


def _interpreter() -> range:
    """The addresses of the interpreter's state, which contains the GIL; none where it does not export them."""
    if not hasattr(ctypes.pythonapi, "_PyRuntime"):
        return range(0)
    begin = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    return range(begin, begin + _RUNTIME_BYTES)
