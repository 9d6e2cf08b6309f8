"""What the threads of this process wait for in the kernel, as /proc tells it (proc(5)).

`/proc/self/task/<tid>/syscall` names the system call that a sleeping thread is in, and its arguments; for a descriptor
of epoll, `/proc/self/fdinfo/<fd>` lists what is registered there. Nothing here stops a thread, or needs its help.
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
    """What is registered with a descriptor of epoll: a descriptor, and the inode that it had when it was."""

    fd: int
    inode: int


@dataclass(frozen=True)
class EpollWait:
    """A wait of a thread.

    Attributes:
        fd: the descriptor of epoll.
        most: how many events it takes at once.
        timeout: milliseconds, as the thread has given them.
    """

    fd: int
    most: int
    timeout: int


def thread_names() -> dict[int, str]:
    """The threads of this process, by their numbers in the kernel, and their names there (15 characters at most)."""
    return {int(task): _read(f"/proc/self/task/{task}/comm").rstrip("\n") for task in os.listdir("/proc/self/task")}


def epoll_wait_of(tid: int) -> EpollWait | None:
    """The wait of a thread in epoll; None while it runs, or waits for something else."""
    call = _system_call(tid)
    return EpollWait(call[1], call[3], call[4]) if len(call) > 4 and _is_epoll(call[1]) else None


def registered(epoll: int) -> list[Registered]:
    """What is registered with a descriptor of epoll."""
    return [Registered(int(fd), int(inode, 16)) for fd, inode in _TARGET.findall(_read(f"/proc/self/fdinfo/{epoll}"))]


def waits_on(tid: int) -> int | None:
    """The one descriptor that a thread waits to read from; None while it runs, or waits for something else."""
    call, machine = _system_call(tid), platform.machine()
    if len(call) > 2 and call[0] in _READING.get(machine, ()):
        return call[1]
    if len(call) > 2 and call[0] in _POLLING.get(machine, ()) and call[2] == 1:
        return _polled(call[1])
    return None


def _system_call(tid: int) -> list[int]:
    """Its number and arguments; one that runs is in none, one that sleeps outside of any is in -1."""
    words = _read(f"/proc/self/task/{tid}/syscall").split()
    return [] if words[:1] in ([], ["running"]) else [int(word, 0) for word in words]


def _is_epoll(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventpoll]"
    except OSError:
        return False


def _polled(address: int) -> int | None:
    """The descriptor of a `struct pollfd`; read by the kernel, for the thread may have left it meanwhile."""
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            return int.from_bytes(os.pread(memory.fileno(), 4, address), "little", signed=True)
    except OSError:
        return None


def _read(path: str) -> str:
    """A file of /proc; empty when its thread or descriptor is gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
