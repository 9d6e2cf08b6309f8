"""The system calls in which the threads of this process wait, from /proc (proc(5)).

`/proc/self/task/<tid>/syscall` contains the system call of a sleeping thread and its arguments; for an epoll
descriptor, `/proc/self/fdinfo/<fd>` lists the registered descriptors. Reading them neither stops a thread nor needs its
cooperation.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from typing import Final

__all__ = ["EpollWait", "Registered", "epoll_wait_of", "registered", "thread_names", "waits_on"]

_READING: Final = {
    "x86_64": {0, 19, 45, 47},  # read, readv, recvfrom, recvmsg
    "aarch64": {63, 65, 207, 212},
}
_POLLING: Final = {"x86_64": {7, 271}, "aarch64": {73}}  # poll, ppoll
_TARGET: Final = re.compile(r"^tfd:\s+(\d+).*\bino:([0-9a-f]+)", re.MULTILINE)


@dataclass(frozen=True)
class Registered:
    """A descriptor registered with an epoll descriptor, and its inode at registration."""

    fd: int
    inode: int


@dataclass(frozen=True)
class EpollWait:
    """A call of epoll_wait in which a thread waits.

    Attributes:
        fd: the epoll descriptor.
        max_events: the maximum number of events of the call.
        timeout: the timeout of the call in milliseconds.
    """

    fd: int
    max_events: int
    timeout: int


def thread_names() -> dict[int, str]:
    """Return the names of the threads of this process by kernel thread id; the kernel keeps 15 characters."""
    return {int(task): _read(f"/proc/self/task/{task}/comm").rstrip("\n") for task in os.listdir("/proc/self/task")}


def epoll_wait_of(tid: int) -> EpollWait | None:
    """Return the epoll_wait call of a thread; None while it runs or waits in another call."""
    call = _system_call(tid)
    return EpollWait(call[1], call[3], call[4]) if len(call) > 4 and _is_epoll(call[1]) else None


def registered(epoll: int) -> list[Registered]:
    """Return the descriptors registered with an epoll descriptor."""
    return [Registered(int(fd), int(inode, 16)) for fd, inode in _TARGET.findall(_read(f"/proc/self/fdinfo/{epoll}"))]


def waits_on(tid: int) -> int | None:
    """Return the single descriptor that a thread waits to read from; None while it runs or waits for something else."""
    call, machine = _system_call(tid), platform.machine()
    if len(call) > 2 and call[0] in _READING.get(machine, ()):
        return call[1]
    if len(call) > 2 and call[0] in _POLLING.get(machine, ()) and call[2] == 1:
        return _polled(call[1])
    return None


def _system_call(tid: int) -> list[int]:
    """Return number and arguments of a thread's system call; empty while it runs, -1 if it sleeps outside a call."""
    words = _read(f"/proc/self/task/{tid}/syscall").split()
    return [] if words[:1] in ([], ["running"]) else [int(word, 0) for word in words]


def _is_epoll(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventpoll]"
    except OSError:
        return False


def _polled(address: int) -> int | None:
    """Return the descriptor in a `struct pollfd`; read through /proc, because the memory may be unmapped by now."""
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            return int.from_bytes(os.pread(memory.fileno(), 4, address), "little", signed=True)
    except OSError:
        return None


def _read(path: str) -> str:
    """Read a file of /proc; return "" when its thread or descriptor no longer exists."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
