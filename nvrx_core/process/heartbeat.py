"""Detection whether the function's thread executes, without running Python code of nvrx in it.

The interpreter runs a pending call in the main thread, between two bytecodes of the code that runs there. The pending
call used here is a C library function that posts a semaphore: an interruption cannot land in it, and it raises nothing.

Pending calls reach only the main thread. For a function that runs in another thread, the kernel reports whether the
thread has used CPU time.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Final

__all__ = ["CpuTime", "Heartbeat", "heartbeat_of_this_thread"]

_SEMAPHORE_BYTES: Final = 64  # more than the size of a `sem_t`
_held = ctypes.PyDLL(None)  # its calls hold the GIL
_post = ctypes.cast(_held.sem_post, ctypes.c_void_p)
_add = ctypes.pythonapi.Py_AddPendingCall
_add.argtypes, _add.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int


class _Semaphore:
    """The semaphore of the process, never destroyed: a pending call may outlive the thread that requested it."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        _held.sem_init(self.memory, 0, 0)
        self.asked = False


_answers = _Semaphore()


class Heartbeat:
    """A probe of the main thread, with one outstanding pending call at a time. For use in one thread."""

    def __init__(self) -> None:
        self._polled = time.monotonic_ns()
        _take_answers()

    def poll(self) -> int:
        """Check whether the main thread has answered since the last poll, and send the next pending call if it has.

        Returns:
            A lower bound of the time of the answer, in monotonic nanoseconds; 0 when there is no answer.
        """
        before, self._polled = self._polled, time.monotonic_ns()
        answered = _take_answers()
        if not _answers.asked:  # -1: the queue is full; retry at the next poll
            _answers.asked = _add(_post, ctypes.addressof(_answers.memory)) == 0
        return before if answered else 0


def _take_answers() -> bool:
    answered = False
    while _held.sem_trywait(_answers.memory) == 0:
        answered, _answers.asked = True, False
    return answered


class CpuTime:
    """A probe of the CPU time of the creating thread; polled by another thread, which may outlive it."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._polled, self._used = time.monotonic_ns(), 0

    def poll(self) -> int:
        """Check whether the thread has used CPU time since the last poll; return as `Heartbeat.poll` does."""
        before, self._polled = self._polled, time.monotonic_ns()
        used_before, self._used = self._used, self._read()
        return before if self._used > used_before else 0

    def _read(self) -> int:
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:  # the thread has exited
            return 0


def heartbeat_of_this_thread() -> Heartbeat | CpuTime:
    """Return a probe of the calling thread."""
    return Heartbeat() if threading.current_thread() is threading.main_thread() else CpuTime()
