"""How a process is broken: one injector for each kind of fault."""

from __future__ import annotations

import ctypes
import os
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

from nvrx_core.testing.fault_kinds import FaultKind, InjectedFault

__all__ = ["INJECTORS", "Call", "Store", "Target", "raise_on_signal", "spares_caller"]

_FOREVER: Final = 1e6
_sleep = time.sleep  # noqa: TID251 - a hang is what is wanted here
_SWALLOWED: Final = 3
_AROUND: Final = (
    3  # calls around a sleep that swallow; as many exceptions in a row would have to come between two sleeps
)
_MUTEX_BYTES: Final = (
    128  # larger than pthread_mutex_t on every Linux; all zero is an unlocked mutex of the default kind
)


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
class Target:
    """The arguments of an injector."""

    call: Call | None
    store: Store | None

    def check(self, kind: FaultKind) -> None:
        """Raise ValueError when this kind of fault needs what is not there."""
        if kind in _NEEDS_CALL:
            self.wrapper()
        if kind in (FaultKind.MONITOR_KILL, FaultKind.MONITOR_STOP):
            self.monitor()
        if kind in (FaultKind.GPU_ERROR, FaultKind.GPU_SLEEP):
            _cuda()
        if kind is FaultKind.HANG_STORE:
            self.blocking_store()

    def wrapper(self) -> Call:
        """Return the `CallWrapper`; ValueError when there is none."""
        if self.call is None:
            raise ValueError("this kind of fault needs call=, the CallWrapper of the wrapped function")
        return self.call

    def monitor(self) -> int:
        """Return the pid of the monitor process; ValueError when there is none."""
        process = getattr(self.wrapper(), "monitor_process", None)
        if process is None:
            raise ValueError(
                "this kind of fault needs call= of a function that a wrapper runs: it has a monitor process"
            )
        return int(process.pid)

    def blocking_store(self) -> Store:
        """Return the store to block in; ValueError when there is none."""
        if self.store is None:
            raise ValueError("Fault.HANG_STORE needs store=, the store to block in")
        return self.store


def raise_on_signal(signum: int) -> None:
    """Let the next such signal raise an `InjectedFault` in the main thread, and restore its handler then."""

    def handler(number: int, frame: FrameType | None) -> None:
        signal.signal(signum, former)
        raise InjectedFault(f"raised by the handler of {signal.Signals(number).name}")

    former = signal.signal(signum, handler)


def _exception(target: Target) -> None:
    raise InjectedFault("injected")


def _keyboard_interrupt(target: Target) -> None:
    raise KeyboardInterrupt


def _stop(target: Target) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    _sleep(_FOREVER)


def _hang_lock(target: Target) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _hang_recv(target: Target) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def _hang_gloo(target: Target) -> None:
    import torch
    import torch.distributed as dist

    dist.recv(torch.zeros(1), src=(dist.get_rank() + 1) % dist.get_world_size(), tag=4242)


def _hang_atomic(target: Target) -> None:
    with target.wrapper().atomic():
        _sleep(_FOREVER)


def _livelock(target: Target) -> None:
    target.wrapper().ping()
    while True:
        _sleep(0.01)


def _stagnation(target: Target) -> None:
    call = target.wrapper()
    while True:
        call.ping()
        call.progress(0)
        _sleep(0.01)


def _async_exception(target: Target) -> None:
    main = threading.main_thread().ident
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main or 0), ctypes.py_object(InjectedFault))
    _await_exception()


def _signal_exception(target: Target) -> None:
    if _in_main_thread():
        raise_on_signal(signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    _await_exception()


def _await_exception() -> None:
    """Run bytecode until the exception is raised, if it is raised in this thread."""
    while _in_main_thread():
        _sleep(0.001)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def spares_caller(kind: FaultKind) -> bool:
    """Whether the calling thread goes on after a fault of this kind."""
    return kind in _SPARES_THE_CALLER or (kind in _INJECTED_INTO_MAIN_THREAD and not _in_main_thread())


def _thread_exception(target: Target) -> None:
    thread = threading.Thread(target=_exception, args=(target,), name="nvrx-injected-fault")
    thread.start()
    thread.join()


def _cuda() -> Any:
    import torch

    if not torch.cuda.is_available():
        raise ValueError("this kind of fault needs a CUDA device")
    return torch


def _gpu_error(target: Target) -> None:
    torch = _cuda()
    torch.zeros(1, device="cuda")[torch.tensor([1], device="cuda")]
    torch.cuda.synchronize()


def _gpu_sleep(target: Target) -> None:
    torch = _cuda()
    while True:
        torch.cuda._sleep(1 << 34)
        torch.cuda.synchronize()


def _gil_locked(target: Target) -> None:
    mutex = ctypes.create_string_buffer(_MUTEX_BYTES)
    libc = ctypes.PyDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def _swallow(target: Target) -> None:
    for _ in range(_SWALLOWED):
        _sleep_swallowing()
    _sleep(_FOREVER)


def _swallow_all(target: Target, *, around: int = _AROUND) -> None:
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


INJECTORS: Final[dict[FaultKind, Callable[[Target], object]]] = {
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
_INJECTED_INTO_MAIN_THREAD: Final = (FaultKind.ASYNC_EXCEPTION, FaultKind.SIGNAL_EXCEPTION)
_SPARES_THE_CALLER: Final = (FaultKind.THREAD_EXCEPTION, FaultKind.MONITOR_KILL, FaultKind.MONITOR_STOP)
