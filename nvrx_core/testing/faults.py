"""Fault injection: break this process in a named way, at a named point of a training.

A job that claims to survive faults is believed when faults were planted and it went on. `strike` breaks the calling
process at once; a `Schedule` says which rank breaks, in which iteration, at which step. Just before the fault its
moment (monotonic seconds) goes to the `stamp` callback: the latency of a recovery is measured from there, apart from
what the wrapper reports. Nothing is printed, and no fault leaves a core file.
"""

from __future__ import annotations

import ctypes
import enum
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, Protocol

__all__ = ["Call", "Fault", "InjectedFault", "Point", "Schedule", "Stamp", "strike"]

_FOREVER = 1e6
_sleep = time.sleep  # noqa: TID251 - a hang is what is wanted here
_SWALLOWED = 3
_MUTEX_BYTES = 128  # larger than pthread_mutex_t on every Linux; all zero is an unlocked mutex of the default kind

Stamp = Callable[[float], object]
"""Is told the monotonic time in seconds, a moment before the fault."""


class Fault(enum.Enum):
    """The kinds of fault. The value is the name used in a schedule's text."""

    EXCEPTION = "exception"  # an Exception leaves the function
    KEYBOARD_INTERRUPT = "keyboard_interrupt"  # a BaseException leaves the function
    EXIT_0 = "exit_0"  # sys.exit(0): an early, orderly end
    EXIT_3 = "exit_3"  # sys.exit(3): an end that reports failure
    OS_EXIT_0 = "os_exit_0"  # the process is gone with code 0, no clean-up runs
    KILL = "kill"  # SIGKILL
    TERM = "term"  # SIGTERM
    SEGV = "segv"  # a real access to an unmapped address
    ABORT = "abort"  # SIGABRT from C
    STOP = "stop"  # SIGSTOP: the process lives and does nothing
    HANG_SLEEP = "hang_sleep"  # blocked in time.sleep
    HANG_LOCK = "hang_lock"  # blocked on a lock that nobody releases
    HANG_RECV = "hang_recv"  # blocked in recv on a socket whose other end stays silent
    HANG_GLOO = "hang_gloo"  # blocked in a process group's recv; the peer never sends
    HANG_STORE = "hang_store"  # blocked in a store's get of a key that nobody sets
    HANG_ATOMIC = "hang_atomic"  # blocked inside an atomic section
    LIVELOCK = "livelock"  # one ping, then busy for ever without another
    STAGNATION = "stagnation"  # pings for ever, while the step counter stands still
    GIL_HELD = "gil_held"  # blocked in C with the GIL held; the call returns on a signal
    GIL_LOCKED = "gil_locked"  # the same in a call that no signal ends: only a kill helps
    SWALLOW = "swallow"  # hangs, and catches BaseException three times before it lets one out
    SWALLOW_ALL = "swallow_all"  # hangs, and catches every BaseException


class InjectedFault(RuntimeError):
    """The exception that `Fault.EXCEPTION` raises."""


class _Store(Protocol):
    def get(self, key: str, /) -> bytes: ...


class Call(Protocol):
    """What some kinds need of `nvrx_core.inprocess.CallWrapper`."""

    def ping(self) -> None:
        """Reports that the function is alive."""

    def progress(self, step: int, /) -> None:
        """Reports the step that the function has come to."""

    def atomic(self) -> AbstractContextManager[object]:
        """Opens a section that no restart interrupts."""


@dataclass(frozen=True)
class _Target:
    call: Call | None
    store: _Store | None

    def check(self, kind: Fault) -> None:
        if kind in (Fault.HANG_ATOMIC, Fault.LIVELOCK, Fault.STAGNATION):
            self.wrapper()
        if kind is Fault.HANG_STORE:
            self.blocking_store()

    def wrapper(self) -> Call:
        if self.call is None:
            raise ValueError("this kind of fault needs call=, the CallWrapper of the wrapped function")
        return self.call

    def blocking_store(self) -> _Store:
        if self.store is None:
            raise ValueError("Fault.HANG_STORE needs store=, the store to block in")
        return self.store


class Point(NamedTuple):
    """A point of a training: the rank's initial number, the restart iteration, and the step within it."""

    initial_rank: int
    iteration: int
    step: int


@dataclass(frozen=True)
class Schedule:
    """Which fault strikes where.

    Example:
        >>> schedule = Schedule.parse("1:0:3=kill, 0:1:5=exception")
        >>> schedule.due(Point(initial_rank=1, iteration=0, step=3))
        <Fault.KILL: 'kill'>
    """

    faults: Mapping[Point, Fault] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Reads `initial_rank:iteration:step=kind` entries, separated by commas; the reverse of `str`.

        Raises:
            ValueError: an entry is malformed, names an unknown kind, or repeats a point; the entry is quoted.
        """
        faults: dict[Point, Fault] = {}
        for entry in filter(None, map(str.strip, text.split(","))):
            point, kind = _parse_entry(entry)
            if point in faults:
                raise ValueError(f"{entry!r}: a fault is already scheduled at this point")
            faults[point] = kind
        return cls(faults)

    def __str__(self) -> str:
        return ", ".join(f"{p.initial_rank}:{p.iteration}:{p.step}={kind.value}" for p, kind in sorted(self))

    def __iter__(self) -> Iterator[tuple[Point, Fault]]:
        return iter(self.faults.items())

    def __len__(self) -> int:
        return len(self.faults)

    def due(self, point: Point) -> Fault | None:
        """The fault scheduled at `point`, if any."""
        return self.faults.get(point)

    def of_iteration(self, iteration: int) -> dict[Point, Fault]:
        """The faults of one iteration."""
        return {point: kind for point, kind in self if point.iteration == iteration}

    def strike(self, point: Point, *, stamp: Stamp, call: Call | None = None, store: _Store | None = None) -> None:
        """Strikes if a fault is due at `point`; else returns at once. Parameters as for the function `strike`."""
        if (kind := self.due(point)) is not None:
            strike(kind, stamp=stamp, call=call, store=store)


def strike(kind: Fault | str, *, stamp: Stamp, call: Call | None = None, store: _Store | None = None) -> NoReturn:
    """Breaks this process. Does not return; kinds that a signal or an abort can end leave by its exception.

    Args:
        kind: a `Fault` or its value.
        stamp: called with the monotonic time in seconds, immediately before the fault.
        call: the wrapped function's `CallWrapper`; needed by HANG_ATOMIC, LIVELOCK and STAGNATION.
        store: the store whose `get` blocks; needed by HANG_STORE.

    Raises:
        ValueError: the kind is unknown, or lacks `call` or `store`.
        InjectedFault: the kind is EXCEPTION.
    """
    fault, target = Fault(kind), _Target(call, store)
    target.check(fault)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stamp(time.monotonic())
    _BLOWS[fault](target)
    raise InjectedFault(f"{fault.value} came to an end by itself")


def _parse_entry(entry: str) -> tuple[Point, Fault]:
    where, _, kind = entry.partition("=")
    try:
        initial_rank, iteration, step = map(int, where.split(":"))
        return Point(initial_rank, iteration, step), Fault(kind.strip())
    except ValueError as error:
        known = ", ".join(known.value for known in Fault)
        raise ValueError(f"{entry!r} is not initial_rank:iteration:step=kind with a kind of {known}") from error


def _exception(target: _Target) -> None:
    raise InjectedFault("injected")


def _keyboard_interrupt(target: _Target) -> None:
    raise KeyboardInterrupt


def _stop(target: _Target) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    _sleep(_FOREVER)


def _hang_lock(target: _Target) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _hang_recv(target: _Target) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def _hang_gloo(target: _Target) -> None:
    import torch
    import torch.distributed as dist

    dist.recv(torch.zeros(1), src=(dist.get_rank() + 1) % dist.get_world_size(), tag=4242)


def _hang_atomic(target: _Target) -> None:
    with target.wrapper().atomic():
        _sleep(_FOREVER)


def _livelock(target: _Target) -> None:
    target.wrapper().ping()
    while True:
        _sleep(0.01)


def _stagnation(target: _Target) -> None:
    call = target.wrapper()
    while True:
        call.ping()
        call.progress(0)
        _sleep(0.01)


def _gil_locked(target: _Target) -> None:
    mutex = ctypes.create_string_buffer(_MUTEX_BYTES)
    libc = ctypes.PyDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def _swallow(target: _Target) -> None:
    for _ in range(_SWALLOWED):
        _sleep_swallowing()
    _sleep(_FOREVER)


def _swallow_all(target: _Target) -> None:
    while True:
        _sleep_swallowing()


def _sleep_swallowing() -> None:
    try:
        _sleep(_FOREVER)
    except BaseException:  # boundary: this is the fault
        return


_BLOWS: dict[Fault, Callable[[_Target], object]] = {
    Fault.EXCEPTION: _exception,
    Fault.KEYBOARD_INTERRUPT: _keyboard_interrupt,
    Fault.EXIT_0: lambda target: sys.exit(0),
    Fault.EXIT_3: lambda target: sys.exit(3),
    Fault.OS_EXIT_0: lambda target: os._exit(0),
    Fault.KILL: lambda target: os.kill(os.getpid(), signal.SIGKILL),
    Fault.TERM: lambda target: signal.raise_signal(signal.SIGTERM),
    Fault.SEGV: lambda target: ctypes.string_at(0),
    Fault.ABORT: lambda target: os.abort(),
    Fault.STOP: _stop,
    Fault.HANG_SLEEP: lambda target: _sleep(_FOREVER),
    Fault.HANG_LOCK: _hang_lock,
    Fault.HANG_RECV: _hang_recv,
    Fault.HANG_GLOO: _hang_gloo,
    Fault.HANG_STORE: lambda target: target.blocking_store().get("a-key-that-nobody-sets"),
    Fault.HANG_ATOMIC: _hang_atomic,
    Fault.LIVELOCK: _livelock,
    Fault.STAGNATION: _stagnation,
    Fault.GIL_HELD: lambda target: ctypes.PyDLL(None).sleep(int(_FOREVER)),
    Fault.GIL_LOCKED: _gil_locked,
    Fault.SWALLOW: _swallow,
    Fault.SWALLOW_ALL: _swallow_all,
}
