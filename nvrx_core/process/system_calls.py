"""The system calls in which the threads of this process wait, from /proc (proc(5)).

`/proc/self/task/<tid>/syscall` contains the system call of a sleeping thread and its arguments; for an epoll
descriptor, `/proc/self/fdinfo/<fd>` lists the registered descriptors. Reading them neither stops a thread nor needs its
cooperation.
"""

from __future__ import annotations

import enum
import os
import platform
import re
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from nvrx_core.process.proc import read_text
from nvrx_core.values import value

__all__ = [
    "EpollWait", "Poll", "Registered", "awaited", "epoll_wait_of", "is_busy", "native_thread_ids", "poll_of",
    "registered", "thread_ids", "thread_names", "waits_on",
]  # fmt: skip


class _Kind(enum.Enum):
    """What a system call waits for."""

    READ = enum.auto()
    POLL = enum.auto()
    SELECT = enum.auto()
    ACCEPT = enum.auto()


_CALLS: Final = {
    "x86_64": {
        _Kind.READ: (0, 19, 45, 47),  # read, readv, recvfrom, recvmsg
        _Kind.POLL: (7, 271),  # poll, ppoll
        _Kind.SELECT: (23, 270),  # select, pselect6
        _Kind.ACCEPT: (43, 288),  # accept, accept4
    },
    "aarch64": {_Kind.READ: (63, 65, 207, 212), _Kind.POLL: (73,), _Kind.SELECT: (72,), _Kind.ACCEPT: (202, 242)},
}
_KINDS: Final = {
    machine: {number: kind for kind, numbers in calls.items() for number in numbers}
    for machine, calls in _CALLS.items()
}
_PPOLL: Final = {"x86_64": 271, "aarch64": 73}
_POLLFD, _TIMESPEC = struct.Struct("=ihh"), struct.Struct("=qq")
MOST_POLLED: Final = 4096
_TARGET: Final = re.compile(r"^tfd:\s+(\d+).*\bino:([0-9a-f]+)", re.MULTILINE)


@value
class Registered:
    """A descriptor registered with an epoll descriptor, and its inode at registration."""

    fd: int
    inode: int


@value
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


@value
class Poll:
    """A call of poll in which a thread waits.

    Attributes:
        fds: the descriptors.
        timeout: the timeout of the call in milliseconds.
    """

    fds: tuple[int, ...]
    timeout: int


def thread_ids() -> set[int]:
    """Return the kernel's ids of the threads of this process."""
    return set(map(int, os.listdir("/proc/self/task")))


def native_thread_ids() -> set[int]:
    """Return those of the threads that Python does not know."""
    return thread_ids() - {thread.native_id for thread in threading.enumerate() if thread.native_id is not None}


def thread_names() -> dict[int, str]:
    """Return the names of the threads of this process by kernel thread id; the kernel keeps 15 characters."""
    return {tid: read_text(f"/proc/self/task/{tid}/comm") for tid in thread_ids()}


def epoll_wait_of(tid: int) -> EpollWait | None:
    """Return the epoll_wait call of a thread; None while it runs or waits in another call."""
    call = _system_call(tid)
    return EpollWait(call[1], call[3], call[4]) if len(call) > 4 and _is_epoll(call[1]) else None


def registered(epoll: int) -> list[Registered]:
    """Return the descriptors registered with an epoll descriptor."""
    return [
        Registered(int(fd), int(inode, 16)) for fd, inode in _TARGET.findall(read_text(f"/proc/self/fdinfo/{epoll}"))
    ]


def waits_on(tid: int) -> int | None:
    """Return the single descriptor that a thread waits to read from; None while it runs or waits for something else."""
    call = _system_call(tid)
    found = _descriptors(call) if _kind(call) in (_Kind.READ, _Kind.POLL) else []
    return found[0] if len(found) == 1 else None


def poll_of(tid: int) -> Poll | None:
    """Return the call of poll in which a thread waits; None while it runs or waits in another call."""
    call = _system_call(tid)
    if _kind(call) is _Kind.POLL:
        return Poll(tuple(fd for fd in _descriptors(call) if fd >= 0), _milliseconds(call[0], call[3]))
    return None


def _milliseconds(number: int, timeout: int) -> int:
    """Return the timeout of a call of poll: its argument, or for ppoll the time at this address."""
    if number != _PPOLL[platform.machine()]:
        return timeout
    time = _memory(timeout, _TIMESPEC.size)
    return 1000 * _TIMESPEC.unpack(time)[0] + _TIMESPEC.unpack(time)[1] // 1_000_000 if timeout and time else -1


def is_busy(tid: int) -> bool:
    """Return whether a thread runs, or tries to accept a connection; False where the kernel does not tell."""
    return _kind(_system_call(tid)) is _Kind.ACCEPT or _words(tid) == ["running"]


def awaited() -> set[int] | None:
    """Return the descriptors that threads wait for in poll, select or a blocking accept, or have registered for epoll.

    None where the kernel does not tell.
    """
    if not _memory(id(awaited), 1):
        return None
    waited_for = {fd for tid in thread_ids() for fd in _waited_for(tid)}
    epolls = (fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_epoll(fd))
    return waited_for | {each.fd for epoll in epolls for each in registered(epoll)}


def _waited_for(tid: int) -> list[int]:
    """Return the descriptors of a thread's call; a listener that does not block is tried, not waited for."""
    call = _system_call(tid)
    kind = _kind(call)
    if kind is _Kind.ACCEPT:
        with suppress(OSError):
            return _descriptors(call) if os.get_blocking(call[1]) else []
    return _descriptors(call) if kind in (_Kind.POLL, _Kind.SELECT) else []


def _kind(call: Sequence[int]) -> _Kind | None:
    """Return what a system call waits for; None for one that is not in the table."""
    return _KINDS.get(platform.machine(), {}).get(call[0]) if len(call) > 3 else None


def _descriptors(call: Sequence[int]) -> list[int]:
    """Return the descriptors that a system call of the table waits to read from."""
    match _kind(call):
        case _Kind.POLL:
            return _polled(call[1], call[2])
        case _Kind.SELECT:
            bits = int.from_bytes(_memory(call[2], (call[1] + 7) // 8), "little")
            return [fd for fd in range(call[1]) if bits >> fd & 1]
        case _:
            return [call[1]]


def _system_call(tid: int) -> list[int]:
    """Return number and arguments of a thread's system call; empty while it runs, -1 if it sleeps outside a call."""
    words = _words(tid)
    return [] if words[:1] in ([], ["running"]) else [int(word, 0) for word in words]


def _words(tid: int) -> list[str]:
    return read_text(f"/proc/self/task/{tid}/syscall").split()


def _is_epoll(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventpoll]"
    except OSError:
        return False


def _polled(address: int, count: int) -> list[int]:
    """Return the descriptors of an array of `struct pollfd`."""
    return [fd for fd, _, _ in _POLLFD.iter_unpack(_memory(address, _POLLFD.size * min(count, MOST_POLLED)))]


def _memory(address: int, size: int) -> bytes:
    """Return memory of this process, b"" if not all of it is mapped by now; thus it is read through /proc."""
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            found = os.pread(memory.fileno(), size, address)
    except (OSError, OverflowError):
        return b""
    return found if len(found) == size else b""
