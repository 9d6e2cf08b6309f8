"""Faults: break this process in a named way.

A job that claims to survive faults is believed when faults were planted and it went on. `inject` breaks the calling
process at once; `nvrx_core.testing.schedule` says which rank breaks where. Just before the fault its moment (monotonic
seconds) goes to the `stamp` callback: the latency of a recovery is measured from there, apart from what the wrapper
reports. Nothing is printed, and no fault leaves a core file.
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
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Protocol

__all__ = [
    "Call",
    "Delay",
    "FaultKind",
    "InjectedFault",
    "Kind",
    "Stamp",
    "Store",
    "inject",
    "kind_of",
    "raise_on_signal",
]

_FOREVER = 1e6
_sleep = time.sleep  # noqa: TID251 - a hang is what is wanted here
_SWALLOWED = 3
_AROUND = 3  # calls around a sleep that swallow; as many exceptions in a row would have to come between two sleeps
_MUTEX_BYTES = 128  # larger than pthread_mutex_t on every Linux; all zero is an unlocked mutex of the default kind

Stamp = Callable[[float], object]
"""Is told the monotonic time in seconds, a moment before the fault."""


class FaultKind(enum.Enum):
    """The kinds of fault. The value is the name used in a schedule's text."""

    EXCEPTION = "exception"
    """An Exception leaves the function."""
    KEYBOARD_INTERRUPT = "keyboard_interrupt"
    """A BaseException leaves the function."""
    EXIT_0 = "exit_0"
    """`sys.exit(0)`: an early, orderly end."""
    EXIT_3 = "exit_3"
    """`sys.exit(3)`: an end that reports failure."""
    OS_EXIT_0 = "os_exit_0"
    """The process is gone with code 0, no clean-up runs."""
    KILL = "kill"
    """SIGKILL."""
    TERM = "term"
    """SIGTERM."""
    SEGV = "segv"
    """A real access to an unmapped address."""
    ABORT = "abort"
    """SIGABRT from C."""
    STOP = "stop"
    """SIGSTOP: the process lives and does nothing."""
    HANG_SLEEP = "hang_sleep"
    """Blocked in time.sleep."""
    HANG_LOCK = "hang_lock"
    """Blocked on a lock that nobody releases."""
    HANG_RECV = "hang_recv"
    """Blocked in recv on a socket whose other end stays silent."""
    HANG_GLOO = "hang_gloo"
    """Blocked in a process group's recv; the peer never sends."""
    HANG_STORE = "hang_store"
    """Blocked in a store's get of a key that nobody sets."""
    HANG_ATOMIC = "hang_atomic"
    """Blocked inside an atomic section."""
    LIVELOCK = "livelock"
    """One ping, then busy for ever without another."""
    STAGNATION = "stagnation"
    """Pings for ever, while the step counter stands still."""
    GIL_HELD = "gil_held"
    """Blocked in C with the GIL held; the call returns on a signal."""
    GIL_LOCKED = "gil_locked"
    """The same in a call that no signal ends: only a kill helps."""
    SWALLOW = "swallow"
    """Hangs, and catches BaseException three times before it lets one out."""
    SWALLOW_ALL = "swallow_all"
    """Hangs, and catches every BaseException."""
    INT = "int"
    """SIGINT."""
    MEMORY_ERROR = "memory_error"
    """An allocation that no machine can serve."""
    ASYNC_EXCEPTION = "async_exception"
    """An Exception comes up in the main thread, from outside of its code."""
    SIGNAL_EXCEPTION = "signal_exception"
    """A handler of SIGUSR1 raises an Exception in the main thread."""
    THREAD_EXCEPTION = "thread_exception"
    """An Exception ends another thread; the caller goes on."""
    MONITOR_KILL = "monitor_kill"
    """SIGKILL to this rank's monitor process; the caller goes on."""
    MONITOR_STOP = "monitor_stop"
    """SIGSTOP to this rank's monitor process; the caller goes on."""
    GPU_ERROR = "gpu_error"
    """An assertion fails in a CUDA kernel; no later CUDA call of the process works."""
    GPU_SLEEP = "gpu_sleep"
    """Blocked in cudaDeviceSynchronize, behind a kernel that does not end."""


@dataclass(frozen=True)
class Delay:
    """Not a fault: the caller is late by so many seconds."""

    seconds: float

    @property
    def value(self) -> str:
        """The name used in a schedule's text."""
        return f"delay:{self.seconds:g}"


Kind = FaultKind | Delay
"""What may strike."""


def kind_of(text: str) -> Kind:
    """The kind that a schedule's text names.

    Raises:
        ValueError: there is none of that name.
    """
    name, _, seconds = text.partition(":")
    return Delay(float(seconds)) if name == "delay" and seconds else FaultKind(text)


class InjectedFault(RuntimeError):
    """The exception that kinds which raise one raise, and those that come to an end although they should not."""


class Store(Protocol):
    """What HANG_STORE needs of a store."""

    def get(self, key: str, /) -> bytes:
        """Waits for a key."""


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
    store: Store | None

    def check(self, kind: FaultKind) -> None:
        if kind in _NEEDS_CALL:
            self.wrapper()
        if kind in (FaultKind.MONITOR_KILL, FaultKind.MONITOR_STOP):
            self.monitor()
        if kind in (FaultKind.GPU_ERROR, FaultKind.GPU_SLEEP):
            _cuda()
        if kind is FaultKind.HANG_STORE:
            self.blocking_store()

    def wrapper(self) -> Call:
        if self.call is None:
            raise ValueError("this kind of fault needs call=, the CallWrapper of the wrapped function")
        return self.call

    def monitor(self) -> int:
        """The pid of the monitor process."""
        process = getattr(self.wrapper(), "monitor_process", None)
        if process is None:
            raise ValueError(
                "this kind of fault needs call= of a function that a wrapper runs: it has a monitor process"
            )
        return int(process.pid)

    def blocking_store(self) -> Store:
        if self.store is None:
            raise ValueError("Fault.HANG_STORE needs store=, the store to block in")
        return self.store


def inject(
    kind: Kind | str, *, stamp: Stamp | None = None, call: Call | None = None, store: Store | None = None
) -> None:
    """Breaks this process. Returns for a `Delay` and for kinds that leave the caller alone, else for none.

    Kinds that a signal or an abort can end leave by its exception.

    Args:
        kind: a `FaultKind`, a `Delay`, or the value of one.
        stamp: called with the monotonic time in seconds, immediately before the fault.
        call: the wrapped function's `CallWrapper`; needed by HANG_ATOMIC, LIVELOCK, STAGNATION and MONITOR_*.
        store: the store whose `get` blocks; needed by HANG_STORE.

    Raises:
        ValueError: the kind is unknown, or lacks `call`, `store` or a CUDA device.
        InjectedFault: the kind raises, or came to an end.
    """
    fault, target = kind_of(kind) if isinstance(kind, str) else kind, _Target(call, store)
    if isinstance(fault, FaultKind):
        target.check(fault)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if stamp is not None:
        stamp(time.monotonic())
    if isinstance(fault, Delay):
        _sleep(fault.seconds)
        return
    _INJECTORS[fault](target)
    spared = fault in _SPARES_THE_CALLER or (fault in _STRIKES_THE_MAIN_THREAD and not _in_main_thread())
    if not spared:
        raise InjectedFault(f"{fault.value} came to an end by itself")


def raise_on_signal(signum: int) -> None:
    """The next such signal raises an `InjectedFault` in the main thread; then its old handler is back."""

    def handler(number: int, frame: FrameType | None) -> None:
        signal.signal(signum, former)
        raise InjectedFault(f"raised by the handler of {signal.Signals(number).name}")

    former = signal.signal(signum, handler)


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


def _async_exception(target: _Target) -> None:
    main = threading.main_thread().ident
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main or 0), ctypes.py_object(InjectedFault))
    _await_exception()


def _signal_exception(target: _Target) -> None:
    if _in_main_thread():
        raise_on_signal(signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    _await_exception()


def _await_exception() -> None:
    """Run bytecode until it comes up, if it comes up in this thread."""
    while _in_main_thread():
        _sleep(0.001)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _thread_exception(target: _Target) -> None:
    thread = threading.Thread(target=_exception, args=(target,), name="nvrx-injected-fault")
    thread.start()
    thread.join()


def _cuda() -> Any:
    import torch

    if not torch.cuda.is_available():
        raise ValueError("this kind of fault needs a CUDA device")
    return torch


def _gpu_error(target: _Target) -> None:
    torch = _cuda()
    torch.zeros(1, device="cuda")[torch.tensor([1], device="cuda")]
    torch.cuda.synchronize()


def _gpu_sleep(target: _Target) -> None:
    torch = _cuda()
    while True:
        torch.cuda._sleep(1 << 34)
        torch.cuda.synchronize()


def _gil_locked(target: _Target) -> None:
    mutex = ctypes.create_string_buffer(_MUTEX_BYTES)
    libc = ctypes.PyDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def _swallow(target: _Target) -> None:
    for _ in range(_SWALLOWED):
        _sleep_swallowing()
    _sleep(_FOREVER)


def _swallow_all(target: _Target, *, around: int = _AROUND) -> None:
    """One exception that comes between two sleeps is swallowed by the next call further out."""
    while True:
        try:
            _swallow_all(target, around=around - 1) if around else _sleep_swallowing()
        except BaseException:  # boundary: this is the fault
            continue


def _sleep_swallowing() -> None:
    try:
        _sleep(_FOREVER)
    except BaseException:  # boundary: this is the fault
        return


_INJECTORS: dict[FaultKind, Callable[[_Target], object]] = {
    FaultKind.EXCEPTION: _exception,
    FaultKind.KEYBOARD_INTERRUPT: _keyboard_interrupt,
    FaultKind.EXIT_0: lambda target: sys.exit(0),
    FaultKind.EXIT_3: lambda target: sys.exit(3),
    FaultKind.OS_EXIT_0: lambda target: os._exit(0),
    FaultKind.KILL: lambda target: os.kill(os.getpid(), signal.SIGKILL),
    FaultKind.TERM: lambda target: os.kill(os.getpid(), signal.SIGTERM),
    FaultKind.INT: lambda target: os.kill(os.getpid(), signal.SIGINT),
    FaultKind.SEGV: lambda target: ctypes.string_at(0),
    FaultKind.ABORT: lambda target: os.abort(),
    FaultKind.STOP: _stop,
    FaultKind.HANG_SLEEP: lambda target: _sleep(_FOREVER),
    FaultKind.HANG_LOCK: _hang_lock,
    FaultKind.HANG_RECV: _hang_recv,
    FaultKind.HANG_GLOO: _hang_gloo,
    FaultKind.HANG_STORE: lambda target: target.blocking_store().get("a-key-that-nobody-sets"),
    FaultKind.HANG_ATOMIC: _hang_atomic,
    FaultKind.LIVELOCK: _livelock,
    FaultKind.STAGNATION: _stagnation,
    FaultKind.GIL_HELD: lambda target: ctypes.PyDLL(None).sleep(int(_FOREVER)),
    FaultKind.GIL_LOCKED: _gil_locked,
    FaultKind.SWALLOW: _swallow,
    FaultKind.SWALLOW_ALL: _swallow_all,
    FaultKind.MEMORY_ERROR: lambda target: bytearray(1 << 56),
    FaultKind.ASYNC_EXCEPTION: _async_exception,
    FaultKind.SIGNAL_EXCEPTION: _signal_exception,
    FaultKind.THREAD_EXCEPTION: _thread_exception,
    FaultKind.MONITOR_KILL: lambda target: os.kill(target.monitor(), signal.SIGKILL),
    FaultKind.MONITOR_STOP: lambda target: os.kill(target.monitor(), signal.SIGSTOP),
    FaultKind.GPU_ERROR: _gpu_error,
    FaultKind.GPU_SLEEP: _gpu_sleep,
}
_NEEDS_CALL: Final = (FaultKind.HANG_ATOMIC, FaultKind.LIVELOCK, FaultKind.STAGNATION)
_STRIKES_THE_MAIN_THREAD: Final = (FaultKind.ASYNC_EXCEPTION, FaultKind.SIGNAL_EXCEPTION)
_SPARES_THE_CALLER: Final = (FaultKind.THREAD_EXCEPTION, FaultKind.MONITOR_KILL, FaultKind.MONITOR_STOP)
